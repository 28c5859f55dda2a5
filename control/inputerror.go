package control

import "weft/control/usererr"

// InputError reports wrong input.
type InputError = usererr.Error

func asInput(err error) error { return usererr.Mark(err) }

func inputf(format string, args ...any) error { return usererr.Errorf(format, args...) }
