// Prints what Go gets from the system. With a folder as argument: serves it over HTTP.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// Goroutines that never call anything are preempted by signals.
func preempt() {
	var stop atomic.Bool
	var done sync.WaitGroup
	for i := 0; i < 4; i++ {
		done.Add(1)
		go func() {
			for n := 0; !stop.Load(); n++ {
			}
			done.Done()
		}()
	}
	time.Sleep(20 * time.Millisecond)
	runtime.GC()
	stop.Store(true)
	done.Wait()
	fmt.Println("preempted")
}

func faults() {
	func() {
		defer func() { fmt.Println(recover()) }()
		var p *int
		*p = 1
	}()
	func() {
		defer func() { fmt.Println(recover()) }()
		z := 0
		fmt.Println(1 / z)
	}()
	debug.SetPanicOnFault(true)
	func() {
		defer func() { fmt.Println(recover() != nil) }()
		memory, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		check(err)
		memory[0] = 1
	}()
}

func channels() {
	numbers, sums := make(chan int), make(chan int)
	for i := 0; i < 50; i++ {
		go func() {
			sum := 0
			for n := range numbers {
				sum += n
			}
			sums <- sum
		}()
	}
	for i := 0; i < 5000; i++ {
		numbers <- i
	}
	close(numbers)
	sum := 0
	for i := 0; i < 50; i++ {
		sum += <-sums
	}
	fmt.Println("sum", sum)
}

func collect() {
	var kept [][]byte
	for i := 0; i < 2000; i++ {
		b := make([]byte, 1<<14)
		b[i%len(b)] = 1
		if i%50 == 0 {
			kept = append(kept, b)
		}
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Println("collected", m.NumGC > 0, len(kept))
}

func processes() {
	out, err := exec.Command("/bin/sh", "-c", "cat; exit 3").Output()
	fmt.Printf("%q %v\n", out, err)
	sub := exec.Command("/bin/cat")
	sub.Stdin = strings.NewReader("through cat")
	text, err := sub.CombinedOutput()
	check(err)
	fmt.Printf("%s\n", text)
	_, err = exec.Command("/bin/missing").Output()
	fmt.Println(err)
	sleeper := exec.Command("/bin/sleep", "100")
	check(sleeper.Start())
	check(sleeper.Process.Kill())
	fmt.Println(sleeper.Wait())
}

func signals() {
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, syscall.SIGUSR1, syscall.SIGHUP)
	check(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	fmt.Println(<-caught)
	check(syscall.Kill(os.Getpid(), syscall.SIGHUP))
	fmt.Println(<-caught)
}

func sockets() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	var done sync.WaitGroup
	var bytes atomic.Int64
	for i := 0; i < 20; i++ {
		done.Add(1)
		go func() {
			defer done.Done()
			c, err := net.Dial("tcp", listener.Addr().String())
			check(err)
			defer c.Close()
			for n := 0; n < 10; n++ {
				fmt.Fprintf(c, "line %d\n", n)
				line, err := bufio.NewReader(c).ReadString('\n')
				check(err)
				bytes.Add(int64(len(line)))
			}
		}()
	}
	done.Wait()
	listener.Close()
	fmt.Println("echoed", bytes.Load())
	c, err := net.Dial("tcp", listener.Addr().String())
	fmt.Println(c, err != nil && strings.Contains(err.Error(), "connection refused"))
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	silent, err := net.Dial("tcp", quiet.Addr().String())
	check(err)
	silent.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = silent.Read(make([]byte, 1))
	fmt.Println(os.IsTimeout(err))
}

func files() {
	folder, err := os.MkdirTemp("", "go")
	check(err)
	defer os.RemoveAll(folder)
	name := filepath.Join(folder, "file")
	check(os.WriteFile(name, []byte(strings.Repeat("text", 10000)), 0o640))
	file, err := os.Open(name)
	check(err)
	hash := sha256.New()
	io.Copy(hash, file)
	fmt.Printf("%x\n", hash.Sum(nil)[:4])
	info, err := file.Stat()
	check(err)
	fmt.Println(info.Mode(), info.Size())
	copied, err := os.Create(filepath.Join(folder, "copy"))
	check(err)
	file.Seek(0, 0)
	n, err := io.Copy(copied, file) // copy_file_range
	fmt.Println(n, err)
	_, err = os.Stat(filepath.Join(folder, "missing"))
	fmt.Println(os.IsNotExist(err))
	entries, err := os.ReadDir(folder)
	fmt.Println(len(entries), err)
}

func main() {
	if len(os.Args) > 1 {
		server := &http.Server{Addr: ":80", Handler: http.FileServer(http.Dir(os.Args[1]))}
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		go func() {
			<-stop
			fmt.Println("stopping")
			server.Close()
		}()
		fmt.Println("serving")
		fmt.Println(server.ListenAndServe())
		os.Exit(5)
	}
	preempt()
	faults()
	channels()
	collect()
	processes()
	signals()
	sockets()
	files()
	os.Exit(7)
}
