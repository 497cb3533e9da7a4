//! A device that distributes received frames by a hash (RSS).

use super::*;

const SPREADS: u64 = EVERYTHING | bits::SPREADS_BY_HASH;

/// Returns a device with these limits of key and table, and these hash types.
fn rig(offered: u64, key: u8, table: u16, hashed: u32) -> Rig {
    let rig = Rig::new(offered);
    let mut device = lock(&rig.device);
    device.configuration.extend([0; 5]);
    device.configuration.push(key);
    device.configuration.extend(table.to_le_bytes());
    device.configuration.extend(hashed.to_le_bytes());
    drop(device);
    rig
}

const PAIRS: NetOptions<'static> = NetOptions { pairs: 2, ..LINE };

#[test]
fn a_device_with_rss_receives_key_and_table() {
    let rig = rig(SPREADS, 40, 128, 0x3f);
    let (mut net, _pairs) = rig.start(&PAIRS).unwrap();
    assert_eq!(lock(&rig.device).accepted, SPREADS);
    assert_eq!(net.spreads_by_hash(), FeatureSupport::Yes);
    let key = core::array::from_fn(|byte| byte as u8);
    let table = core::array::from_fn(|entry| u16::from(entry >= 100));
    net.spread(&key, &table).unwrap();
    let commands = &lock(&rig.device).commands;
    let command = commands.last().unwrap();
    let (head, rest) = command.split_at(10);
    assert_eq!(
        head,
        [4, 1, 0x36, 0, 0, 0, 127, 0, 0, 0],
        "TCP and UDP by the lowest seven bits, other frames to the first pair"
    );
    let (entries, rest) = rest.split_at(256);
    assert!(entries[..200].iter().all(|byte| *byte == 0) && entries[200..] == [1, 0].repeat(28));
    assert_eq!(rest[..3], [2, 0, 40]);
    assert_eq!(rest[3..], key);
}

#[test]
fn rss_is_not_negotiated_below_the_needed_limits() {
    for (offered, key, table, hashed) in [
        (EVERYTHING, 40, 128, 0x3f),
        (SPREADS, 39, 128, 0x3f),
        (SPREADS, 40, 64, 0x3f),
        (SPREADS, 40, 128, 0x3d),
    ] {
        let rig = rig(offered, key, table, hashed);
        let (mut net, _pairs) = rig.start(&PAIRS).unwrap();
        assert_eq!(net.spreads_by_hash(), FeatureSupport::No);
        assert_eq!(net.spread(&[0; 40], &[0; 128]), Err(DeviceError::CommandRefused));
        assert_eq!(lock(&rig.device).commands, [vec![4, 0, 2, 0]]);
    }
}

#[test]
fn a_table_with_nonexistent_pairs_is_rejected() {
    let rig = rig(SPREADS, 40, 128, 0x3f);
    let (mut net, _pairs) = rig.start(&PAIRS).unwrap();
    assert_eq!(net.spread(&[0; 40], &[2; 128]), Err(DeviceError::CommandRefused));
    assert_eq!(lock(&rig.device).commands.len(), 1);
}
