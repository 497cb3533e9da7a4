//! Tests of the module.

use super::*;
use isola_supervisor_fake::memory;

#[test]
fn the_rest_of_the_last_page_of_an_image_is_zeroed() {
    let mut old = memory(2 << 20);
    old.write(0, &[0xa5; 3 * PAGE_SIZE as usize]);
    let image = [1; PAGE_SIZE as usize + 5];
    let mut staged = Staged::begin(image.len() as u64, old);
    staged.append(0, &image).unwrap();
    staged.measure(u64::MAX / 2);
    let complete = staged.complete().unwrap();
    let pages = complete.memory.read(3 * PAGE_SIZE as usize);
    assert_eq!(&pages[..image.len()], &image[..]);
    assert!(pages[image.len()..2 * PAGE_SIZE as usize].iter().all(|byte| *byte == 0));
    assert_eq!(pages[2 * PAGE_SIZE as usize], 0xa5, "the next page is unchanged");
}

impl<M: Pages> Staged<M> {
    /// Returns the memory's range.
    pub(crate) fn range(&self) -> isola_abi::id::PhysRange {
        self.memory.range()
    }
}
