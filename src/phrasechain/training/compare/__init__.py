"""The paper's tables and figures on one's own data: rows trained and scored by one command."""
