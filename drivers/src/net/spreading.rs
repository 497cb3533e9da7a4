//! Receive-side scaling: the device distributes frames over its pairs by a hash (virtio 1.2, 5.1.6.5.7).

use super::configuration;
use crate::device::{Device, DeviceError};

/// Length of the hash's key, in bytes.
pub const KEY_LEN: usize = 40;

/// Entries of the table: every device with RSS supports this number (virtio 1.2, 5.1.4.1).
pub const TABLE_LEN: usize = 128;

/// The hash types: addresses and ports of TCP and UDP over both IP families.
const HASHED: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5;

/// The pair for frames without a hash.
const UNHASHED_PAIR: u16 = 0;

/// Length of the command: hash types, table mask, pair for unhashed frames, table, number of used transmit queues, and
/// the key behind its length.
pub(super) const COMMAND_LEN: usize = 4 + 2 + 2 + 2 * TABLE_LEN + 2 + 1 + KEY_LEN;

/// Returns whether the device has room for the key and the table, and supports the hash types.
pub(super) fn suffices(device: &Device) -> Result<bool, DeviceError> {
    device.configuration(|transport| {
        let key = transport.configuration_u8(configuration::LONGEST_KEY)?;
        let table = transport.configuration_u16(configuration::LONGEST_TABLE)?;
        let low = transport.configuration_u16(configuration::HASHED)?;
        let enough = usize::from(key) >= KEY_LEN && usize::from(table) >= TABLE_LEN;
        Some(enough && u32::from(low) & HASHED == HASHED)
    })
}

/// Returns the command's data.
pub(super) fn command(key: &[u8; KEY_LEN], table: &[u16; TABLE_LEN], pairs: u16) -> [u8; COMMAND_LEN] {
    let mut data = [0; COMMAND_LEN];
    let mut rest = &mut data[..];
    let mut put = |bytes: &[u8]| {
        if let Some(place) = rest.split_off_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(&HASHED.to_le_bytes());
    put(&(TABLE_LEN as u16 - 1).to_le_bytes());
    put(&UNHASHED_PAIR.to_le_bytes());
    table.iter().for_each(|pair| put(&pair.to_le_bytes()));
    put(&pairs.to_le_bytes());
    put(&[KEY_LEN as u8]);
    put(key);
    data
}
