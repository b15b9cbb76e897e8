"""The application on top: the command line, study files, tables, and files in a shared folder as transport."""
