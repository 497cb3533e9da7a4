//! The fuzz targets' entry points under random input that proptest makes: every run of the tests has them.

#[path = "../fuzz/conversation.rs"]
mod conversation;
#[path = "../fuzz/entries.rs"]
mod entries;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_frames(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::frames(&data);
    }

    #[test]
    fn any_dhcpv6_answers(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::dhcp6(&data);
    }

    #[test]
    fn any_packets_about_the_link(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::packets(&data);
    }

    #[test]
    fn any_segments_calls_and_time(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::segments(&data);
    }

    #[test]
    fn any_dhcp_answers(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::dhcp(&data);
    }

    #[test]
    fn any_changes_to_a_conversation(data in prop::collection::vec(any::<u8>(), 0..900)) {
        conversation::conversation(&data);
    }
}
