"""Steps of timm's image models: the script that runs one, and the operators of all models, captured once."""
