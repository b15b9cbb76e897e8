"""The application on top: command line, study files, tables, and a shared folder as transport."""
