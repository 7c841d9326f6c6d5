"""The commands and options about launch files of training frameworks: what reads them, writes them and changes them."""
