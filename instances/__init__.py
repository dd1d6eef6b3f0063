"""Problems with their origin: models and machines of the papers, instances made by rule."""
