package control

import (
	"net/http"

	"weft/openflow"
)

// portWords says how ports are shown in matches and actions.
type portWords uint8

const (
	byName portWords = iota // where they have one
	byNumber
)

// wordsOf is what a request asks for: names=false has ports shown by number.
func wordsOf(r *http.Request) (portWords, error) {
	switch word := r.URL.Query().Get("names"); word {
	case "", "true":
		return byName, nil
	case "false":
		return byNumber, nil
	default:
		return byName, inputf("names=%s: expected true or false", word)
	}
}

// names is what shows ports so. Caller holds mu.
func (d *Daemon) names(words portWords) openflow.Names {
	if words == byNumber {
		return nil
	}
	return d.view
}
