package redisguard

import (
	"strconv"
	"strings"
	"sync"
)

// mark is the key of the mark of key, in the slot of key.
func (g *Guard) mark(key string) string { return g.prefix + tag(key) + "}:" + key }

// tag returns what, between braces, goes to the slot of key: what is hashed of it, if that can stand between braces.
func tag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	if strings.Contains(key, "}") {
		return numbers()[slot(key)]
	}
	return key
}

const slots = 16384

// numbers has, for each slot, the least number that goes there.
var numbers = sync.OnceValue(func() *[slots]string {
	var table [slots]string
	for n, left := 0, slots; left > 0; n++ {
		digits := strconv.Itoa(n)
		if s := slot(digits); table[s] == "" {
			table[s] = digits
			left--
		}
	}
	return &table
})

// slot is where a Cluster puts what hashes as text: its CRC16, of the XMODEM kind.
func slot(text string) int {
	var crc uint16
	for i := range len(text) {
		crc ^= uint16(text[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}
