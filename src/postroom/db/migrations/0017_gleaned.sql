-- Language and references are found with the words, after the commit. `gleaned`: they have been; until then whoever
-- asks for them reads the text. A node of the release before goes on storing them with the message, and its indexer
-- says nothing of them.
ALTER TABLE message_words
  ADD COLUMN language text COLLATE "C",
  ADD COLUMN gleaned boolean NOT NULL DEFAULT true;
ALTER TABLE message_words ALTER COLUMN gleaned SET DEFAULT false;
COMMENT ON COLUMN messages.language IS 'of mail that a release before 17 took; see message_words.language';
