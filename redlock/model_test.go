package redlock

import (
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// model is a node that decides as the scripts do, for one key, without a server. TestModelIsTheScripts holds it to them.
type model struct {
	lock   string // its owner; "": free
	number int64  // of the last renewal
	end    time.Time

	owner  string // of the fence record: the last to be granted the lock
	token  fencing.Token
	writer string
	marks  []string
}

// grant is grant.lua.
func (m *model) grant(now time.Time, clock fencing.Token, owner string, ttl time.Duration) answer {
	if m.lock != "" && m.lock != owner {
		return answer{ballot: refused, left: m.end.Sub(now), holder: m.lock}
	}
	if m.marked(owner) || (m.owner == owner && m.lock != owner) {
		return answer{ballot: failed, err: errOver}
	}
	if m.lock != owner {
		m.lock, m.number, m.owner, m.end = owner, 0, owner, now.Add(ttl)
	} else if end := now.Add(ttl); end.After(m.end) {
		m.end = end
	}
	return answer{ballot: granted, read: m.token, now: clock}
}

// write is fence.lua.
func (m *model) write(owner string, read, token fencing.Token) bool {
	if m.lock != owner || (m.token != read && (m.token != token || m.writer != owner)) {
		return false
	}
	m.token, m.writer = token, owner
	return true
}

// release is release.lua.
func (m *model) release(owner string, mark bool) bool {
	if mark && !m.marked(owner) {
		m.marks = append(m.marks, owner)
	}
	if m.lock != owner {
		return false
	}
	m.lock = ""
	return true
}

// renew is renew.lua.
func (m *model) renew(now time.Time, owner string, ttl time.Duration, shorten bool, number int64) int64 {
	switch {
	case m.lock == "":
		return replyFree
	case m.lock != owner:
		return replyOthers
	case number < m.number:
		return -1
	}
	if end := now.Add(ttl); end.After(m.end) || (shorten && number > m.number) {
		m.end = end
	}
	m.number = number
	return replyRenewed
}

// restore is restore.lua.
func (m *model) restore(now time.Time, owner string, ttl time.Duration, number int64, token fencing.Token) bool {
	if m.lock != "" || m.marked(owner) {
		return m.lock == owner
	}
	m.lock, m.number, m.owner, m.end = owner, number, owner, now.Add(ttl)
	if token > m.token {
		m.token, m.writer = token, owner
	}
	return true
}

func (m *model) marked(owner string) bool {
	for _, o := range m.marks {
		if o == owner {
			return true
		}
	}
	return false
}
