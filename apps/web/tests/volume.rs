//! A site on a volume, between two cells of this process.

mod common;

use common::{Response, responses};
use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::{sleep, timeout};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_need::{Need, need};
use isola_net::{TcpStream, listen};
use isola_storage_sim::SimDisk;
use isola_test_cells::{dial, run_server_and_client};
use isola_volumes::{Access, Volume};
use isola_web::volume_server::{Directory, serve};
use isola_web::volume_site::MOST_OPEN;
use std::fs;
use std::future::{Future, pending};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The length of the large file: more than the cache.
const LARGE: usize = 3_000_001;

/// The most bytes that clients hold.
const BUDGET: usize = 4 << 20;

/// Returns the contents of the large file: no two blocks are the same.
fn large() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(11);
    (0..LARGE).map(|_| random.u8(..)).collect()
}

/// Makes an image with the site in `/www`.
fn image(more: impl FnOnce(&Path)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let www = folder.path().join("www");
    fs::create_dir_all(www.join("sub/without")).unwrap();
    fs::write(folder.path().join("secret"), "outside of the site").unwrap();
    for (name, content) in [
        ("index.html", "<h1>index</h1>"),
        ("sub/index.html", "<h1>sub</h1>"),
        ("sub/without/page", "page"),
        ("letters.txt", "abcdefghijklmnopqrstuvwxyz"),
        ("empty", ""),
        ("a name", "text"),
    ] {
        fs::write(www.join(name), content).unwrap();
    }
    fs::write(www.join("large.bin"), large()).unwrap();
    std::os::unix::fs::symlink("/secret", www.join("link")).unwrap();
    let sparse = fs::File::create(www.join("sparse")).unwrap();
    sparse.set_len(100_000).unwrap();
    sparse.write_all_at(b"end", 99_997).unwrap();
    more(&www);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(24 << 20).unwrap();
    let options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4", "-d"];
    let made = Command::new("mke2fs").args(options).arg(folder.path()).arg(file.path()).status().unwrap();
    assert!(made.success());
    fs::read(file.path()).unwrap()
}

/// Runs a server of `/www` on a disk, with an activity of the cell beside it, and a client.
fn test<A, C>(
    cores: usize,
    disk: &SimDisk,
    aside: impl Fn(Volume, SimDisk) -> A + Send + 'static,
    client: impl FnOnce() -> C + Send,
) where
    A: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let disk = disk.clone();
    let server = move || async move {
        let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
        let settings = CacheSettings { capacity: 1 << 20, dirty: 256 << 10, seed: 1 };
        let cache = BlockCache::new(device, settings).unwrap();
        let volume = Volume::mount(cache.clone(), Access::ReadWrite).await.unwrap();
        let directory = Directory::new(&volume, "/www", BUDGET, 3).await.unwrap();
        let _listening = listen(80, 256, move |stream| serve(stream, directory)).unwrap();
        aside(volume, disk).await;
        pending::<()>().await;
    };
    run_server_and_client(cores, Loss::Never, server, client);
}

/// The page for paths without a file.
const MISSING: &[u8] = b"<!doctype html>\n<title>404 Not Found</title>\n<h1>404 Not Found</h1>\n";

async fn nothing(_: Volume, _: SimDisk) {}

/// Sends a request; returns all that the server sends until it closes the connection.
async fn exchange(text: &str) -> Vec<u8> {
    let mut stream = dial(80).await;
    stream.write(IoBuf::from(text.as_bytes().to_vec()).into()).await.unwrap();
    read_all(&mut stream).await
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Chain::new();
    while let Ok(Some(data)) = stream.read().await {
        all.append(data);
    }
    all.to_vec()
}

async fn request(method: &str, path: &str, fields: &str) -> Response {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    responses(&exchange(&text).await, &[method]).remove(0)
}

async fn get(path: &str, fields: &str) -> Response {
    request("GET", path, fields).await
}

/// A site of an archive answers in the same way (`tests/session.rs`).
#[test]
fn paths_lead_to_files_below_the_directory_and_to_no_others() {
    if !need(Need::E2fsprogs) {
        return;
    }
    test(1, &SimDisk::new(image(|_| {})), nothing, || async {
        for (path, body) in [
            ("/", "<h1>index</h1>"),
            ("/index.html?query", "<h1>index</h1>"),
            ("/sub/", "<h1>sub</h1>"),
            ("/sub/index.html", "<h1>sub</h1>"),
            ("/sub/without/page", "page"),
            ("/letters.txt", "abcdefghijklmnopqrstuvwxyz"),
            ("/empty", ""),
            ("/a%20name", "text"),
            ("/%73ub/", "<h1>sub</h1>"),
        ] {
            // From the disk, and from the table of open files.
            for _ in 0..2 {
                let response = get(path, "").await;
                assert_eq!((response.status, response.body.as_slice()), (200, body.as_bytes()), "{path}");
                let response = request("HEAD", path, "").await;
                assert_eq!(response.field("Content-Length"), Some(body.len().to_string().as_str()), "{path}");
            }
        }
        assert_eq!(get("/letters.txt", "").await.field("Content-Type"), Some("text/plain; charset=utf-8"));
        let response = get("/sub?x", "").await;
        assert_eq!((response.status, response.field("Location")), (301, Some("/sub/")));
        for path in [
            "/none",
            "/sub/without",
            "/sub/without/",
            "/letters.txt/",
            "/letters.txt/x",
            "//",
            "/sub//index.html",
            "/../secret",
            "/sub/../../secret",
            "/%2e%2e/secret",
            "/..%2fsecret",
            "/link",
            "/a%00",
            "/./index.html",
            "/lost+found",
        ] {
            assert_eq!(get(path, "").await.status, 404, "{path}");
        }
        assert_eq!(request("POST", "/", "").await.status, 405);
    });
}

#[test]
fn conditions_and_ranges_hold_for_files_of_a_volume() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = SimDisk::new(image(|www| {
        fs::write(www.join("404.html"), "<h1>own page</h1>").unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        fs::File::options().write(true).open(www.join("letters.txt")).unwrap().set_modified(old).unwrap();
    }));
    test(1, &disk, nothing, || async {
        let whole = get("/letters.txt", "").await;
        let (tag, changed) = (whole.field("ETag").unwrap(), whole.field("Last-Modified").unwrap());
        assert_eq!(changed, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(tag.starts_with('"'), "{tag}");
        for (fields, status) in [
            (format!("If-None-Match: {tag}\r\n"), 304),
            ("If-None-Match: \"other\"\r\n".to_owned(), 200),
            (format!("If-Modified-Since: {changed}\r\n"), 304),
            ("If-Match: \"other\"\r\n".to_owned(), 412),
            (format!("If-Match: {tag}\r\n"), 200),
            (format!("If-Range: {tag}\r\nRange: bytes=1-2\r\n"), 206),
            ("If-Range: \"other\"\r\nRange: bytes=1-2\r\n".to_owned(), 200),
            ("Range: bytes=26-\r\n".to_owned(), 416),
        ] {
            assert_eq!(get("/letters.txt", &fields).await.status, status, "{fields}");
        }
        let part = get("/letters.txt", "Range: bytes=3-5\r\n").await;
        assert_eq!((part.body.as_slice(), part.field("Content-Range")), (&b"def"[..], Some("bytes 3-5/26")));
        let part = get("/large.bin", "Range: bytes=1000000-\r\n").await;
        assert!(part.status == 206 && part.body == large()[1_000_000..]);
        assert!(get("/sparse", "").await.body.ends_with(b"\0\0\0end"));
        // Changed just now: another change may have the same time.
        assert!(get("/large.bin", "").await.field("ETag").is_some());
        let missing = get("/none", "").await;
        assert_eq!((missing.status, missing.body.as_slice()), (404, &b"<h1>own page</h1>"[..]));
    });
}

#[test]
fn all_cores_serve_files_larger_than_the_cache() {
    if !need(Need::E2fsprogs) {
        return;
    }
    for cores in [1, 3] {
        test(cores, &SimDisk::new(image(|_| {})), nothing, || async {
            let expected = large();
            for _ in 0..6 {
                let response = get("/large.bin", "").await;
                assert!(response.status == 200 && response.body == expected);
                assert_eq!(get("/sub/", "").await.body, b"<h1>sub</h1>");
            }
            // On one connection, one request after the other.
            let mut text =
                "GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\nGET /empty HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3);
            text.push_str("GET /letters.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            text = text.replace("GET /empty", "GET /sub/");
            let all = responses(&exchange(&text).await, &["GET"; 7]);
            assert!(all[0].body == expected && all[4].body == expected);
            assert!([1, 3, 5].iter().all(|index| all[*index].body == b"<h1>sub</h1>"));
            assert_eq!(all[6].body, b"abcdefghijklmnopqrstuvwxyz");
        });
    }
}

/// Requests that are answered as they arrive, and those that the connection's task answers, alternate on one connection.
#[test]
fn requests_of_a_connection_are_answered_in_order_in_all_divisions_into_frames() {
    if !need(Need::E2fsprogs) {
        return;
    }
    test(1, &SimDisk::new(image(|_| {})), nothing, || async {
        // Each in the table of open files, some after the first pass only.
        let paths = ["/letters.txt", "/none", "/sub/", "/large.bin", "/letters.txt", "/sub", "/"];
        let status = [200, 404, 200, 200, 200, 301, 200];
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
        let text = paths.map(request).concat();
        let expected = [&b"abcdefghijklmnopqrstuvwxyz"[..], MISSING, b"<h1>sub</h1>", &large()];
        for piece in [text.len(), 1, 7, 40, 100] {
            let mut stream = dial(80).await;
            for part in text.chunks(piece) {
                stream.write(IoBuf::copy_from_slice(part).into()).await.unwrap();
                if piece < text.len() {
                    sleep(Duration::from_micros(200)).await;
                }
            }
            // An unfinished request, whose rest comes after the answers to the others, and which ends the connection.
            let (first, rest) = ("GET / HTTP/1.1\r\nHo", "st: x\r\nConnection: close\r\n\r\n");
            stream.write(IoBuf::from_static(first.as_bytes()).into()).await.unwrap();
            let mut all = Chain::new();
            while all.len() < LARGE || !all.to_vec().ends_with(b"<h1>index</h1>") {
                all.append(stream.read().await.unwrap().expect("the connection stays"));
            }
            stream.write(IoBuf::from_static(rest.as_bytes()).into()).await.unwrap();
            let mut all = all.to_vec();
            all.extend(read_all(&mut stream).await);
            let all = responses(&all, &["GET"; 8]);
            assert_eq!(all.iter().map(|one| one.status).collect::<Vec<_>>()[..7], status, "{piece}");
            assert!(all.iter().zip(expected).all(|(one, body)| one.body == body), "{piece}");
            assert_eq!((all[7].status, all[7].body.as_slice()), (200, &b"<h1>index</h1>"[..]));
        }
        // The client asks without reading: the server neither answers in vain nor loses a request.
        let mut stream = dial(80).await;
        stream.set_receive_window(2048);
        let mut count = 0;
        let ask = request("/letters.txt");
        let writes = async {
            loop {
                stream.write(IoBuf::copy_from_slice(&ask).into()).await.unwrap();
                count += 1;
            }
        };
        assert!(timeout(Duration::from_millis(300), writes).await.is_err());
        stream.set_receive_window(1 << 20);
        stream.shutdown();
        let all = read_all(&mut stream).await;
        assert_eq!(all.windows(10).filter(|bytes| *bytes == b"qrstuvwxyz").count(), count);
    });
}

#[test]
fn a_changed_or_replaced_file_is_served_anew() {
    if !need(Need::E2fsprogs) {
        return;
    }
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let aside = |volume: Volume, _| async move {
        for step in 0..6 {
            // The client has seen the effect of the previous step.
            while SEEN.load(Ordering::Relaxed) < step + 1 {
                sleep(Duration::from_millis(2)).await;
            }
            match step {
                0 => {
                    let file = volume.open("/www/letters.txt").await.unwrap();
                    file.write(0, IoBuf::from_static(b"ABC")).await.unwrap();
                }
                1 => {
                    let file = volume.create("/www/new").await.unwrap();
                    file.write(0, IoBuf::from_static(b"replaced")).await.unwrap();
                    volume.rename("/www/new", "/www/letters.txt").await.unwrap();
                }
                2 => volume.remove("/www/letters.txt").await.unwrap(),
                3 => volume.make_directory("/www/letters.txt").await.unwrap(),
                4 => drop(volume.create("/www/letters.txt/index.html").await.unwrap()),
                _ => volume.open("/www/index.html").await.unwrap().truncate(4).await.unwrap(),
            }
        }
    };
    test(1, &SimDisk::new(image(|_| {})), aside, || async {
        let until = async |path: &str, expected: (u16, &[u8])| {
            let wait = async {
                loop {
                    let response = get(path, "").await;
                    if (response.status, response.body.as_slice()) == expected {
                        break;
                    }
                }
            };
            timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("{path}: {expected:?}"));
        };
        let proceed = || SEEN.fetch_add(1, Ordering::Relaxed);
        let tag = get("/letters.txt", "").await.field("ETag").unwrap().to_owned();
        until("/letters.txt", (200, b"abcdefghijklmnopqrstuvwxyz")).await;
        proceed();
        until("/letters.txt", (200, b"ABCdefghijklmnopqrstuvwxyz")).await;
        proceed();
        until("/letters.txt", (200, b"replaced")).await;
        assert_eq!(get("/letters.txt", &format!("If-None-Match: {tag}\r\n")).await.status, 200);
        proceed();
        until("/letters.txt", (404, MISSING)).await;
        proceed();
        proceed();
        until("/letters.txt/", (200, b"")).await;
        assert_eq!(get("/letters.txt", "").await.status, 301);
        proceed();
        until("/", (200, b"<h1>")).await;
    });
}

#[test]
fn an_error_before_the_head_is_500_and_one_after_it_ends_the_connection() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let image = image(|_| {});
    let find = |wanted: &[u8]| {
        image.chunks(4096).position(|block| block.starts_with(wanted)).expect("the block is there") * 4096
    };
    let (late, directory) = (find(&large()[2 << 20..][..64]), {
        let entry = image.windows(4).position(|bytes| bytes == b"page").unwrap();
        entry / 4096 * 4096
    });
    let disk = SimDisk::new(image);
    disk.set_bad(Some(late..late + 4096));
    test(1, &disk, nothing, || async {
        let text = "GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let all = exchange(text).await;
        let body = all.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let sent = &all[body..];
        assert!(all.starts_with(b"HTTP/1.1 200 "));
        assert!(sent.len() > 1 << 20 && sent.len() <= 2 << 20 && *sent == large()[..sent.len()]);
        assert_eq!(get("/letters.txt", "").await.status, 200, "others are served");
    });
    disk.set_bad(Some(directory..directory + 4096));
    test(1, &disk, nothing, || async {
        assert_eq!(get("/sub/without/page", "").await.status, 500);
        assert_eq!(get("/letters.txt", "").await.status, 200, "others are served");
    });
}

#[test]
fn clients_that_do_not_read_hold_bounded_memory_and_others_are_served() {
    if !need(Need::E2fsprogs) {
        return;
    }
    test(1, &SimDisk::new(image(|_| {})), nothing, || async {
        let mut stuck = Vec::new();
        for _ in 0..200 {
            let mut stream = dial(80).await;
            stream.set_receive_window(4096);
            let text = "GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n";
            stream.write(IoBuf::from_static(text.as_bytes()).into()).await.unwrap();
            stuck.push(stream);
        }
        let mut refused = 0;
        for stream in &mut stuck {
            let data = timeout(Duration::from_secs(10), stream.read()).await.unwrap().unwrap().unwrap();
            refused += usize::from(data.to_vec().starts_with(b"HTTP/1.1 503 "));
        }
        // Four with the full window, 64 with the small one: the budget is used.
        assert!((100..190).contains(&refused), "{refused} of 200 are refused");
        drop(stuck);
        let wait = async { while get("/letters.txt", "").await.status != 200 {} };
        timeout(Duration::from_secs(10), wait).await.expect("the memory is given back");
        assert!(get("/large.bin", "").await.body == large());
    });
}

#[test]
fn the_number_of_open_files_is_bounded() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = SimDisk::new(image(|www| {
        for number in 0..MOST_OPEN + 50 {
            fs::write(www.join(format!("f{number}")), number.to_string()).unwrap();
        }
    }));
    let aside = |volume: Volume, _| async move {
        let site = isola_web::volume_site::VolumeSite::new(volume, "/www", 1).await.unwrap();
        let prefaces = isola_web::Prefaces::new(isola_web::date::UnixSeconds(1));
        for round in 0..2 {
            for number in 0..MOST_OPEN + 50 {
                let text = format!("GET /f{number} HTTP/1.1\r\nHost: x\r\n\r\n");
                let isola_web::head::Parsed::Request(head, _) = isola_web::head::parse(text.as_bytes())
                else {
                    panic!("{text}")
                };
                let request = isola_web::volume_site::Request::new(&head);
                let response = site.answer(&request, &prefaces).await;
                assert!(response.head.to_vec().starts_with(b"HTTP/1.1 200"), "{number}");
                assert!(site.open_count() <= MOST_OPEN, "{} in round {round}", site.open_count());
            }
        }
        assert_eq!(site.open_count(), MOST_OPEN);
        DONE.store(true, Ordering::Relaxed);
    };
    test(1, &disk, aside, || async {
        let wait = async {
            while !DONE.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), wait).await.unwrap();
    });
}
