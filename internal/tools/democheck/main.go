// Democheck reads what `paddock demo -json` printed and fails unless the
// protected variants ran the recompute once with one holder, and the broken
// ones showed that they are.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	var report struct {
		Variants []struct {
			Name       string
			Requests   int
			Recomputes int
			MaxHolders int `json:"max_holders"`
		}
	}
	if err := json.NewDecoder(os.Stdin).Decode(&report); err != nil {
		fmt.Fprintln(os.Stderr, "democheck:", err)
		os.Exit(1)
	}
	left := map[string]bool{ // true: protected
		"none": false, "check-then-set": false, "plain-del": false, "token-no-renewal": false,
		"paddock-wait": true, "paddock-stale": true, "paddock-renewed": true,
	}
	ok := true
	for _, v := range report.Variants {
		protected, known := left[v.Name]
		delete(left, v.Name)
		right := known && v.Requests > 1
		if protected {
			right = right && v.Recomputes == 1 && v.MaxHolders == 1
		} else {
			right = right && v.Recomputes > 1 && v.MaxHolders > 1
		}
		fmt.Printf("%-18s %d requests, %d recomputes, at most %d at once: %v\n", v.Name, v.Requests, v.Recomputes, v.MaxHolders, right)
		ok = ok && right
	}
	for name := range left {
		fmt.Println(name, "is missing")
		ok = false
	}
	if !ok {
		os.Exit(1)
	}
}
