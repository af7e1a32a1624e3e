"""A keras.Model whose data are checked and whose steps are guarded; knows no architecture."""
