//! HTTP clients against `web` in a cell.

use crate::program;
use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::namespace::{self, PREFIX_LEN, SHARED};
use isola_tests::wait;
use std::fs;
use std::net::TcpStream;
use tempfile::TempDir;

/// The page that the image of `web` serves.
const PAGE: &str = include_str!("../../../apps/web/site/index.html");

/// Runs `with` in a namespace, with a machine whose cell serves the page, and the page's URL.
#[track_caller]
fn serving(with: impl FnOnce(&Isola, &str) + Send) {
    if !need(Need::HttpClients) {
        return;
    }
    namespace::run(|| {
        let isola = Isola::up(&["--net", SHARED.network]);
        let network = format!("{}/{PREFIX_LEN}", SHARED.cell());
        isola.run(&["run", "-d", "--name", "site", "--cores", "2", "--network", &network, "web"]).ok();
        wait::until_true("the cell serves", || TcpStream::connect((SHARED.cell(), 80)).is_ok());
        with(&isola, &format!("http://{}/", SHARED.cell()));
        let cell = isola.cell("site");
        assert_eq!(cell["state"], "running", "{cell:#}");
    });
}

/// Returns the number after a word in a program's output, such as `Failed requests: 0`.
fn number_behind(output: &str, word: &str) -> u64 {
    let line = output.lines().find_map(|line| line.trim().strip_prefix(word)).unwrap_or_default();
    let digits = line.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("no number after {word:?} in {output}"))
}

#[test]
fn curl_gets_pages_ranges_heads_and_error_responses() {
    serving(|_, url| {
        let curl =
            |arguments: &[&str]| program::run("curl", &[&["--silent", "--show-error"], arguments].concat());
        assert_eq!(curl(&[url]), PAGE);
        assert_eq!(curl(&["--http1.0", url]), PAGE);
        assert_eq!(curl(&["--compressed", url]), PAGE);
        assert_eq!(curl(&["--range", "3-8", url]), &PAGE[3..9]);
        let head = curl(&["--head", url]);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(number_behind(&head, "Content-Length:"), PAGE.len() as u64);
        // Conditional requests with the page's validators.
        let validator =
            |name| head.lines().find_map(|line| line.strip_prefix(name)).expect("a validator").trim();
        let status = |fields: &[&str]| {
            let print = ["--output", "/dev/null", "--write-out", "%{http_code}"];
            curl(&[&print[..], fields].concat())
        };
        let none_match = format!("If-None-Match:{}", validator("ETag:"));
        assert_eq!(status(&["--header", &none_match, url]), "304");
        assert_eq!(status(&["--time-cond", validator("Last-Modified:"), url]), "304");
        assert_eq!(status(&[&format!("{url}none")]), "404");
        assert_eq!(status(&["--path-as-is", &format!("{url}../etc/passwd")]), "404");
        assert_eq!(status(&["--range", "100000-", url]), "416");
        assert_eq!(status(&["--data", "a=b", url]), "405");
        assert_eq!(status(&["--request", "DELETE", url]), "405");
        // Several requests on one connection, then several connections in parallel.
        let three = ["--output", "/dev/null", "--output", "/dev/null", "--output", "/dev/null"];
        let counted = [&three[..], &["--write-out", "%{num_connects},", url, url, url]].concat();
        assert_eq!(curl(&counted), "1,0,0,");
        let parallel =
            [&["--parallel"], &three[..], &["--write-out", "%{http_code},", url, url, url]].concat();
        assert_eq!(curl(&parallel), "200,200,200,");
    });
}

#[test]
fn wrk_and_apache_bench_lose_no_request() {
    serving(|isola, url| {
        let out = program::run("wrk", &["-t1", "-c20", "-d2s", url]);
        assert!(!out.contains("Socket errors") && !out.contains("Non-2xx"), "{out}");
        let served = out.lines().find(|line| line.contains("requests in")).expect("a count").trim();
        assert!(
            served.split(' ').next().is_some_and(|count| count.parse::<u64>().is_ok_and(|n| n > 100)),
            "{out}"
        );
        for (kept, count) in [(&["-k"][..], 2000), (&[], 500)] {
            let requests = count.to_string();
            let out = program::run("ab", &[kept, &["-q", "-c", "20", "-n", &requests, url]].concat());
            assert_eq!(number_behind(&out, "Complete requests:"), count, "{out}");
            assert_eq!(number_behind(&out, "Failed requests:"), 0, "{out}");
            assert!(!out.contains("Non-2xx"), "{out}");
            assert_eq!(number_behind(&out, "Document Length:"), PAGE.len() as u64, "{out}");
        }
        let counters = &isola.cell("site")["counters"];
        for losses in ["tcp_timeouts", "tcp_fast_retransmits"] {
            assert_eq!(counters[losses], 0, "nothing is lost on a TAP interface: {counters:#}");
        }
    });
}

#[test]
fn http_libraries_of_python_and_go_reuse_connections() {
    serving(|isola, url| {
        let folder = TempDir::new().expect("a folder");
        let accepted = || isola.cell("site")["counters"]["tcp_accepted"].as_u64().expect("a count");
        let python = "import sys, http.client, urllib.request\n\
            page = urllib.request.urlopen(sys.argv[1]).read()\n\
            client = http.client.HTTPConnection(sys.argv[1].split('/')[2])\n\
            for _ in range(50):\n\
            \x20   client.request('GET', '/')\n\
            \x20   answer = client.getresponse()\n\
            \x20   assert answer.status == 200 and answer.read() == page\n\
            client.request('HEAD', '/')\n\
            answer = client.getresponse()\n\
            assert answer.read() == b'' and int(answer.getheader('Content-Length')) == len(page)\n\
            sys.stdout.write(page.decode())\n";
        let before = accepted();
        assert_eq!(program::run("python3", &["-c", python, url]), PAGE);
        assert_eq!(accepted() - before, 2);
        let go = r#"package main

import ("fmt"; "io"; "net/http"; "os"; "sync")

func main() {
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 4, MaxIdleConnsPerHost: 4}}
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 50; i++ {
				answer, err := client.Get(os.Args[1])
				if err != nil { panic(err) }
				page, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || answer.StatusCode != 200 { panic(fmt.Sprint(err, answer.Status)) }
				if i == 0 && worker == 0 { fmt.Print(string(page)) }
			}
		}()
	}
	group.Wait()
}
"#;
        let source = folder.path().join("client.go");
        fs::write(&source, go).expect("a file");
        let program = folder.path().join("client");
        let [source, program] = [&source, &program].map(|path| path.to_str().expect("it is text"));
        program::run("go", &["build", "-o", program, source]);
        let before = accepted();
        assert_eq!(program::run(program, &[url]), PAGE);
        assert_eq!(accepted() - before, 4);
    });
}

#[test]
fn a_browser_shows_the_page() {
    serving(|_, url| {
        let folder = TempDir::new().expect("a folder");
        let profile = format!("--user-data-dir={}", folder.path().display());
        let switches = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            // Prints the page once it is idle.
            "--virtual-time-budget=10000",
            "--dump-dom",
            &profile,
            url,
        ];
        let page = program::run("chromium", &switches);
        assert!(page.contains("<h1>This page came out of a cell</h1>"), "{page}");
        // The browser accepts the style sheet only with the right media type.
        let file = folder.path().join("styled.html");
        let mark = "document.documentElement.lang=this.tagName";
        let text =
            format!("<html><head><link rel=stylesheet href='{url}style.css' onload='{mark}'></head></html>");
        fs::write(&file, text).expect("a file");
        let last = switches.len() - 1;
        let styled = format!("file://{}", file.display());
        let loaded = program::run("chromium", &[&switches[..last], &[styled.as_str()]].concat());
        assert!(loaded.contains("lang=\"LINK\""), "{loaded}");
    });
}
