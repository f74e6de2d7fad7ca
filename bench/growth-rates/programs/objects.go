// Objects that are kept.
package main
import ("fmt"; "os"; "time"; "strings"; "strconv"; "net/http"; _ "net/http/pprof")
var keep [][]byte
func main() {
	if len(os.Args) > 1 { go http.ListenAndServe(os.Args[1], nil) }
	begin := time.Now(); var base float64
	up, _ := os.ReadFile("/proc/uptime"); base, _ = strconv.ParseFloat(strings.Fields(string(up))[0], 64)
	for time.Since(begin) < 300*time.Second {
		for i := 0; i < 100; i++ { b := make([]byte, 4096); for j := range b { b[j] = 1 }; keep = append(keep, b) }
		s, _ := os.ReadFile("/proc/self/statm"); pages, _ := strconv.Atoi(strings.Fields(string(s))[1])
		fmt.Println(base+time.Since(begin).Seconds(), len(keep)*4096, pages*4096)
		time.Sleep(100 * time.Millisecond)
	}
}
