//! Responses to requests, without a network.

mod common;

use common::{CHANGED_TEXT, LARGE, NOW, exchange, get, large, request, responses, site};
use isola_iobuf::{Chain, IoBuf};
use isola_proves::proves;
use isola_web::head::MAX_HEAD_BYTES;
use isola_web::{Prefaces, Session};

#[test]
fn files_come_with_their_lengths_and_types() {
    for (path, media, body) in [
        ("/", "text/html; charset=utf-8", &b"<h1>index</h1>"[..]),
        ("/sub/", "text/html; charset=utf-8", b"<h1>sub</h1>"),
        ("/letters.txt?a=b", "text/plain; charset=utf-8", b"abcdefghijklmnopqrstuvwxyz"),
        ("/a%20name", "application/octet-stream", b"text"),
        ("/empty", "application/octet-stream", b""),
        ("http://x/%6cetters.txt", "text/plain; charset=utf-8", b"abcdefghijklmnopqrstuvwxyz"),
    ] {
        let response = get(path, "");
        assert_eq!((response.status, response.body.as_slice()), (200, body), "{path}");
        assert_eq!(response.field("Content-Type"), Some(media));
        assert_eq!(response.field("Connection"), None);
        assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    }
    assert!(get("/large.bin", "").body == large());
}

#[proves("RFC 9110 6.6.1", "an origin server with a clock sends the date of the response.")]
#[proves("RFC 9110 8.8.2", "it sends the date of a file's last change if that is known.")]
#[test]
fn a_response_has_its_date_and_the_date_of_its_file() {
    let response = get("/", "");
    assert_eq!(response.field("Date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert_eq!(response.field("Last-Modified"), Some(CHANGED_TEXT));
    let mut prefaces = Prefaces::new(NOW);
    prefaces.refresh(isola_web::date::UnixSeconds(NOW.0 + 1));
    let mut session = Session::new();
    session.receive(Chain::from(IoBuf::from_static(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
    session.serve(site(), &prefaces);
    let response = responses(&session.take_output(usize::MAX).to_vec(), &["GET"]).remove(0);
    assert_eq!(response.field("Date"), Some("Sun, 06 Nov 1994 08:49:38 GMT"));
}

#[proves("RFC 9110 9.3.2", "the response to HEAD is that to GET without its body.")]
#[test]
fn a_head_has_the_fields_of_a_get() {
    for path in ["/", "/large.bin", "/none", "/sub"] {
        let (head, get) = (request("HEAD", path, ""), get(path, ""));
        assert_eq!((head.status, &head.fields, head.body.len()), (get.status, &get.fields, 0), "{path}");
    }
    // RFC 9110 14.2: a range does not apply to HEAD.
    assert_eq!(request("HEAD", "/letters.txt", "Range: bytes=0-1\r\n").status, 200);
}

#[test]
fn no_path_leads_out_of_the_site() {
    for path in [
        "/none",
        "/../etc/passwd",
        "/sub/../letters.txt",
        "/%2e%2e/letters.txt",
        "/..%2fletters.txt",
        "//letters.txt",
        "/letters.txt/",
        "/letters.txt%00",
        "/LETTERS.TXT",
        "/%",
        "/%zz",
        "/%ff",
        "/sub/index.html/..",
    ] {
        assert_eq!(get(path, "").status, 404, "{path}");
    }
    assert_eq!(get("/sub%2findex.html", "").status, 200);
}

#[test]
fn a_directory_without_its_slash_is_redirected() {
    let response = get("/sub", "");
    assert_eq!((response.status, response.field("Location")), (301, Some("/sub/")));
}

#[proves("RFC 9110 15.3.7", "a partial response has its position and the length of the whole.")]
#[proves("RFC 9110 14.4", "the response to an unsatisfiable range has the length of the whole.")]
#[test]
fn a_partial_response_has_its_position() {
    let part = |range: &str| get("/letters.txt", &format!("Range: {range}\r\n"));
    let response = part("bytes=2-4");
    assert_eq!((response.status, response.body.as_slice()), (206, &b"cde"[..]));
    assert_eq!(response.field("Content-Range"), Some("bytes 2-4/26"));
    assert_eq!(response.field("Content-Length"), Some("3"));
    assert!(response.field("ETag").is_some() && response.field("Last-Modified").is_some());
    assert_eq!(part("bytes=-2").body, b"yz");
    assert_eq!(part("bytes=24-999").body, b"yz");
    assert_eq!((part("bytes=0-0,2-2").status, part("bytes=2-1").status), (200, 200));
    let response = part("bytes=26-");
    assert_eq!((response.status, response.field("Content-Range")), (416, Some("bytes */26")));
    let last = get("/large.bin", "Range: bytes=300000-\r\n");
    assert_eq!(last.body, [large()[LARGE - 1]]);
}

#[proves("RFC 9110 13.1.2", "a client with a matching tag gets 304 and no body, by weak comparison.")]
#[proves("RFC 9110 13.1.3", "a client with a current date gets 304, unless the request has a tag.")]
#[proves("RFC 9110 15.4.5", "the response has the fields that identify the client's copy.")]
#[test]
fn a_client_with_a_current_copy_gets_304() {
    let tag = get("/", "").field("ETag").unwrap().to_owned();
    let other = get("/sub/", "").field("ETag").unwrap().to_owned();
    assert_ne!(tag, other);
    for fields in [
        format!("If-None-Match: {tag}\r\n"),
        format!("If-None-Match: \"x\", W/{tag}\r\n"),
        "If-None-Match: *\r\n".to_owned(),
        format!("If-Modified-Since: {CHANGED_TEXT}\r\n"),
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(),
        format!("If-None-Match: {tag}\r\nIf-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n"),
    ] {
        let response = get("/", &fields);
        assert_eq!((response.status, response.body.len()), (304, 0), "{fields}");
        assert_eq!(response.field("ETag"), Some(tag.as_str()));
        assert_eq!(response.field("Content-Length"), None);
        assert_eq!(request("HEAD", "/", &fields).status, 304);
    }
    for fields in [
        format!("If-None-Match: {other}\r\n"),
        "If-Modified-Since: Thu, 03 Nov 1994 08:49:37 GMT\r\n".to_owned(),
        "If-Modified-Since: yesterday\r\n".to_owned(),
        format!("If-None-Match: {other}\r\nIf-Modified-Since: {CHANGED_TEXT}\r\n"),
    ] {
        assert_eq!(get("/", &fields).status, 200, "{fields}");
    }
}

#[proves(
    "RFC 9110 13.1.1",
    "a request whose If-Match does not hold is answered by 412; weak tags never match."
)]
#[proves("RFC 9110 13.1.4", "a request whose If-Unmodified-Since does not hold is answered by 412.")]
#[test]
fn preconditions_are_checked() {
    let tag = get("/", "").field("ETag").unwrap().to_owned();
    for (fields, status) in [
        (format!("If-Match: {tag}\r\n"), 200),
        ("If-Match: *\r\n".to_owned(), 200),
        (format!("If-Match: W/{tag}\r\n"), 412),
        ("If-Match: \"x\"\r\n".to_owned(), 412),
        (format!("If-Unmodified-Since: {CHANGED_TEXT}\r\n"), 200),
        ("If-Unmodified-Since: Thu, 03 Nov 1994 08:49:37 GMT\r\n".to_owned(), 412),
    ] {
        assert_eq!(get("/", &fields).status, status, "{fields}");
    }
}

#[proves(
    "RFC 9110 13.1.5",
    "a range applies if the client's part is of the same file; otherwise the response is the whole file."
)]
#[test]
fn a_range_applies_only_to_the_same_file() {
    let tag = get("/letters.txt", "").field("ETag").unwrap().to_owned();
    for (validator, status) in [
        (tag.clone(), 206),
        (format!("W/{tag}"), 200),
        ("\"x\"".to_owned(), 200),
        (CHANGED_TEXT.to_owned(), 206),
        ("Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), 200),
        ("yesterday".to_owned(), 200),
    ] {
        let fields = format!("Range: bytes=0-0\r\nIf-Range: {validator}\r\n");
        assert_eq!(get("/letters.txt", &fields).status, status, "{validator}");
    }
}

#[proves("RFC 9112 9.3.2", "pipelined requests are answered in order.")]
#[test]
fn requests_are_answered_in_order_however_they_are_split() {
    let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\r\nHEAD /large.bin HTTP/1.1\r\nHost: x\r\n\r\n\
                 GET /none HTTP/1.1\r\nHost: x\r\n\r\nGET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n\
                 GET /empty HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /empty HTTP/1.0\r\n\r\n";
    let methods = ["GET", "HEAD", "GET", "GET", "GET", "GET"];
    let expected = exchange(&mut Session::new(), &[text]);
    let all = responses(&expected, &methods);
    let statuses: Vec<_> = all.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [200, 200, 404, 200, 200, 200]);
    assert_eq!(all[4].field("Connection"), Some("keep-alive"));
    assert_eq!(all[5].field("Connection"), Some("close"));
    for len in 1..text.len() {
        let frames: Vec<&[u8]> = text.chunks(len).collect();
        let mut session = Session::new();
        assert!(exchange(&mut session, &frames) == expected, "in frames of {len} bytes");
        assert!(session.has_ended() && session.served() == 6);
    }
}

#[proves("RFC 9112 9.6", "requests after one that ends the connection are not answered.")]
#[test]
fn nothing_is_answered_after_the_last_response() {
    let mut session = Session::new();
    let text = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(responses(&exchange(&mut session, &[text]), &["GET"]).len(), 1);
    assert!(session.has_ended());
    assert_eq!(exchange(&mut session, &[b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]), b"");
}

#[proves("RFC 9110 15.5.6", "a 405 lists the allowed methods.")]
#[test]
fn an_unsupported_method_is_rejected_and_the_connection_persists() {
    let mut session = Session::new();
    let text = b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let all = responses(&exchange(&mut session, &[text]), &["DELETE", "GET"]);
    assert_eq!((all[0].status, all[0].field("Allow"), all[1].status), (405, Some("GET, HEAD"), 200));
}

#[test]
fn a_body_is_not_parsed_as_a_request() {
    let text = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 27\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut session = Session::new();
    let all = responses(&exchange(&mut session, &[text]), &["POST"]);
    assert_eq!((all.len(), all[0].status, all[0].field("Connection")), (1, 405, Some("close")));
}

#[test]
fn an_endless_head_is_limited() {
    let mut session = Session::new();
    let mut sent = 0;
    let mut answer = exchange(&mut session, &[b"GET / HTTP/1.1\r\nHost: x\r\n"]);
    while answer.is_empty() {
        answer = exchange(&mut session, &[b"X: 0123456789\r\n"]);
        sent += 15;
        assert!(sent <= MAX_HEAD_BYTES && session.held_bytes() <= 4 * MAX_HEAD_BYTES);
    }
    assert_eq!(responses(&answer, &["GET"])[0].status, 431);
    assert!(session.has_ended());
}

#[proves("RFC 9110 15.5.9", "a server that times out answers by 408 and closes the connection.")]
#[test]
fn a_timeout_is_answered_only_within_a_request() {
    let prefaces = Prefaces::new(NOW);
    let mut session = Session::new();
    assert!(!session.is_within_request());
    exchange(&mut session, &[b"GET / HT"]);
    assert!(session.is_within_request());
    session.time_out(&prefaces);
    let late = responses(&session.take_output(usize::MAX).to_vec(), &["GET"]).remove(0);
    assert_eq!((late.status, late.field("Connection")), (408, Some("close")));
    let mut session = Session::new();
    exchange(&mut session, &[b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]);
    session.time_out(&prefaces);
    assert!(session.has_ended() && session.take_output(usize::MAX).is_empty());
}

#[test]
fn output_for_a_client_that_does_not_read_is_limited() {
    let prefaces = Prefaces::new(NOW);
    let mut session = Session::new();
    let requests = "GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    session.receive(Chain::from(IoBuf::copy_from_slice(requests.as_bytes())));
    let mut count = 0;
    while !session.serve(site(), &prefaces) {
        count += 1;
        let output = session.take_output(usize::MAX);
        assert!(output.len() < LARGE + 1_000, "more than one response at a time");
    }
    assert!(count >= 99);
}

#[test]
fn a_response_allocates_no_memory() {
    let prefaces = Prefaces::new(NOW);
    let mut session = Session::new();
    let request = IoBuf::from_static(b"GET /letters.txt HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    let turn = |session: &mut Session| {
        session.receive(Chain::from(request.clone()));
        session.serve(site(), &prefaces);
        session.take_output(usize::MAX)
    };
    turn(&mut session);
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert_eq!(turn(&mut session).parts().len(), 1);
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn responses_are_views_of_the_site_s_memory() {
    let prefaces = Prefaces::new(NOW);
    let views = || {
        let mut session = Session::new();
        session.receive(Chain::from(IoBuf::from_static(b"GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n")));
        session.serve(site(), &prefaces);
        let output = session.take_output(usize::MAX);
        output.parts().map(|part| part.as_ptr()).collect::<Vec<_>>()
    };
    assert_eq!(views(), views());
}
