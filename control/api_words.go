package control

import "net/http"

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
