//! Console bytes of any kind: no frame, or a request that is encoded again to one that reads the same.
#![no_main]

use isola_abi::frame::{Decoder, encode};
use isola_abi::management::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut decoder, mut bytes) = (Decoder::new(), bytes);
    while let Some(request) = decoder.next::<Request>(&mut bytes) {
        let Ok(request) = request else { continue };
        let again = encode(&request).expect("what came in a frame fits in one");
        assert_eq!(Decoder::new().next::<Request>(&mut &again[..]), Some(Ok(request)));
    }
});
