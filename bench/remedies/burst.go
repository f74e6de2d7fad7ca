// A burst whose memory the runtime keeps for a while.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
)

func main() {
	var all [][]byte
	for i := 0; i < 20000; i++ {
		block := make([]byte, 10000)
		for j := 0; j < len(block); j += 4096 {
			block[j] = 1
		}
		all = append(all, block)
	}
	fmt.Fprintln(os.Stderr, len(all))
	all = nil
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	if lines.Scan() {
		debug.FreeOSMemory()
		fmt.Println("done")
		lines.Scan()
	}
}
