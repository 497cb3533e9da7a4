//! The entry points of the fuzz targets with random input from proptest, in every test run.

#[path = "../../../fuzz/src/web.rs"]
mod entries;

use proptest::prelude::*;

/// Pieces of requests, so that random input gets beyond the first checks.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"GET ".to_vec()),
        Just(b"HEAD ".to_vec()),
        Just(b"/f".to_vec()),
        Just(b"/a".to_vec()),
        Just(b" HTTP/1.1\r\n".to_vec()),
        Just(b" HTTP/1.0\r\n".to_vec()),
        Just(b"Host: x\r\n".to_vec()),
        Just(b"Connection: close\r\n".to_vec()),
        Just(b"Content-Length: 3\r\n".to_vec()),
        Just(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"%2f".to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::requests(&data);
    }

    #[test]
    fn any_words(cut in any::<u8>(), words in words()) {
        entries::requests(&[&[cut][..], &words].concat());
    }

    #[test]
    fn any_fields(data in "([a-h][ -~]{0,40}\n){0,6}") {
        entries::fields(data.as_bytes());
    }

    #[test]
    fn any_archives(data in prop::collection::vec(any::<u8>(), 0..1600)) {
        entries::archives(&data);
    }
}
