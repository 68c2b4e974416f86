-- The settings by which ports of public addresses are those of inner addresses during a run; NULL if there are none.
ALTER TABLE runs ADD COLUMN port_blocks TEXT;
