"""The page that ``hgemm report`` writes: its data and its HTML (``page``), its charts (``charts``), and the command."""
