"""Adapters: small patches of training frameworks, where what is done for every script is not enough; one file a framework."""
