"""The page that ``hgemm report`` writes: its data and HTML (``page``), its charts (``charts``), and the command."""
