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

// worded answers requests in the words that they ask for: names=false has ports shown
// by number.
func worded(answer func(*http.Request, portWords) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		switch word := r.URL.Query().Get("names"); word {
		case "", "true":
			return answer(r, byName)
		case "false":
			return answer(r, byNumber)
		default:
			return nil, inputf("names=%s: expected true or false", word)
		}
	}
}

// names is what shows ports so. Caller holds mu.
func (d *Daemon) names(words portWords) openflow.Names {
	if words == byNumber {
		return nil
	}
	return d.view
}
