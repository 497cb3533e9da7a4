//! Keys, and their assignment to shards.

use core::hash::Hasher;

use foldhash::{SharedSeed, quality::FoldHasher};
use isola_iobuf::IoBuf;

/// The length of the longest key, in bytes (memcached's protocol.txt, "Keys").
pub const MAX_KEY_LEN: usize = 250;

/// The number of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

/// A key of 1 to [`MAX_KEY_LEN`] bytes of any value, with its hash. The bytes are a view of the received frame: a key
/// takes no memory of its own until its item is stored.
#[derive(Clone, Debug)]
pub struct Key {
    bytes: IoBuf,
    hash: u64,
}

impl Key {
    /// Creates a key. Returns `None` unless the length is 1 to [`MAX_KEY_LEN`] bytes.
    pub fn new(bytes: IoBuf, hasher: &KeyHasher) -> Option<Self> {
        let hash = KeyRef::new(&bytes, hasher)?.hash;
        Some(Self { bytes, hash })
    }

    /// Returns the bytes of the key.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the key as a view.
    pub fn into_bytes(self) -> IoBuf {
        self.bytes
    }

    /// Borrows the key.
    pub(crate) fn borrow(&self) -> KeyRef<'_> {
        KeyRef { bytes: &self.bytes, hash: self.hash }
    }

    /// Returns the shard of the key among `shard_count` shards.
    pub fn shard(&self, shard_count: u16) -> ShardId {
        shard_of_hash(self.hash, shard_count)
    }
}

/// A borrowed key, for a lookup without a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRef<'a> {
    bytes: &'a [u8],
    hash: u64,
}

impl<'a> KeyRef<'a> {
    /// Creates a borrowed key. Returns `None` unless the length is 1 to [`MAX_KEY_LEN`] bytes.
    pub fn new(bytes: &'a [u8], hasher: &KeyHasher) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > MAX_KEY_LEN {
            return None;
        }
        Some(Self { bytes, hash: hasher.hash(bytes) })
    }

    /// Returns the bytes of the key.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bits of the hash that select the bucket within the shard.
    pub fn bucket_hash(self) -> u32 {
        self.hash as u32
    }

    /// Returns the shard of the key among `shard_count` shards.
    pub fn shard(self, shard_count: u16) -> ShardId {
        shard_of_hash(self.hash, shard_count)
    }
}

/// Maps the upper half of the hash to a shard. The lower half selects the bucket within the shard, so the keys of one
/// shard spread over all of its buckets.
fn shard_of_hash(hash: u64, shard_count: u16) -> ShardId {
    let scaled = (hash >> 32) * u64::from(shard_count);
    ShardId((scaled >> 32) as u16)
}

/// Returns the shard of `key` among `shard_count` shards.
pub fn shard_of(key: &Key, shard_count: u16) -> ShardId {
    key.shard(shard_count)
}

/// The hash function of keys, the same on all cores of a server. Two servers with different seeds assign the same keys
/// to different buckets, so a client cannot choose keys that collide in one bucket.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    seed: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    /// Creates a hash function from a random `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed: seed.rotate_left(32), shared: SharedSeed::from_u64(seed) }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(bytes);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn key(text: &str, seed: u64) -> Key {
        Key::new(IoBuf::copy_from_slice(text.as_bytes()), &KeyHasher::new(seed)).unwrap()
    }

    #[test]
    fn keys_spread_evenly_over_the_shards_and_over_the_buckets_of_a_shard() {
        let mut shards = [0u32; 3];
        let mut buckets = vec![0u32; 64];
        for number in 0..30_000 {
            let key = key(&format!("user:{number}"), 7);
            let ShardId(shard) = shard_of(&key, 3);
            shards[usize::from(shard)] += 1;
            if shard == 1 {
                buckets[key.borrow().bucket_hash() as usize % 64] += 1;
            }
        }
        assert!(shards.iter().all(|&count| (9_500..10_500).contains(&count)), "{shards:?}");
        assert!(buckets.iter().all(|&count| (90..230).contains(&count)), "{buckets:?}");
    }

    #[test]
    fn another_seed_assigns_keys_to_other_buckets() {
        let same = (0..1_000)
            .filter(|number| {
                let text = format!("{number}");
                key(&text, 1).borrow().bucket_hash() % 1024 == key(&text, 2).borrow().bucket_hash() % 1024
            })
            .count();
        assert!(same < 20, "{same} of 1000 keys have the same bucket with both seeds");
    }

    #[test]
    fn only_keys_of_1_to_250_bytes_are_accepted() {
        let hasher = KeyHasher::new(0);
        assert!(Key::new(IoBuf::from_static(b""), &hasher).is_none());
        assert!(Key::new(IoBuf::copy_from_slice(&[b'k'; 250]), &hasher).is_some());
        assert!(Key::new(IoBuf::copy_from_slice(&[b'k'; 251]), &hasher).is_none());
    }
}
