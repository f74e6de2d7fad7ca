// Sends requests, 64 at a time, and counts those that fail. Usage: client ADDRESS SECONDS BYTES. Prints a JSON line.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	address := os.Args[1]
	seconds, _ := strconv.Atoi(os.Args[2])
	size, _ := strconv.Atoi(os.Args[3])
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	body := bytes.Repeat([]byte{7}, size)
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var lock sync.Mutex
	var wait sync.WaitGroup
	sent, failed, errors := 0, 0, map[string]int{}
	for range 64 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for time.Now().Before(end) {
				err := send(client, address, body)
				lock.Lock()
				sent++
				if err != nil {
					failed++
					errors[err.Error()]++
				}
				lock.Unlock()
			}
		}()
	}
	wait.Wait()
	texts, _ := json.Marshal(errors)
	fmt.Printf("{\"client\":\"Go net/http\",\"bytes\":%d,\"sent\":%d,\"failed\":%d,\"errors\":%s}\n", size, sent, failed, texts)
}

func send(client *http.Client, address string, body []byte) error {
	var response *http.Response
	var err error
	if len(body) == 0 {
		response, err = client.Get("http://" + address + "/")
	} else {
		response, err = client.Post("http://"+address+"/echo", "application/octet-stream", bytes.NewReader(body))
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
