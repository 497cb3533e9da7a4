//! The image store, with room for one image.

use super::Supervisor;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::*;
use sha2::{Digest, Sha256};

impl Supervisor {
    /// Returns the stored images.
    pub(super) fn image_infos(&self) -> Vec<ImageInfo> {
        let info = |(digest, image): (&ImageDigest, &Vec<u8>)| ImageInfo {
            digest: *digest,
            len_bytes: image.len() as u64,
            cells: 0,
        };
        self.images.iter().map(info).collect()
    }

    /// Adds a piece of the uploaded image, and stores the image once it is complete.
    pub(super) fn store_chunk(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), ManagementError> {
        let (len, image) = self.image.as_mut().ok_or(ManagementError::NoImage)?;
        assert_eq!(offset, image.len() as u64);
        image.extend(bytes);
        assert!(image.len() as u64 <= *len);
        if image.len() as u64 == *len
            && let Some((_, image)) = self.image.take()
        {
            let digest = ImageDigest(Sha256::digest(&image).into());
            assert!(!self.images.contains_key(&digest), "the client uploads an image that is stored");
            self.images = [(digest, image)].into();
        }
        Ok(())
    }

    /// Returns the image for a cell with this number of cores.
    pub(super) fn image(&self, digest: &ImageDigest, cores: u32) -> Result<Vec<u8>, ManagementError> {
        let image = self.images.get(digest).cloned().ok_or(ManagementError::NoImage)?;
        let free = self.free_cores();
        if cores > free {
            return Err(ManagementError::CoresExhausted { wanted: cores, free });
        }
        Ok(image)
    }
}
