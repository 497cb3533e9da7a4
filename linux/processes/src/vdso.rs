//! The vDSO in the memory of programs: the clock page, and the image above it.

use crate::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::ready;
use isola_linux_abi::numbers::{MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, PROT_EXEC, PROT_NONE, PROT_READ};
use isola_linux_memory::{BoxFuture, MapObject, MapRequest, PageSource, ProcessMemory, Protection};
use isola_linux_vdso::{ClockPage, IMAGE};
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_user_mode::PAGE_SIZE;

/// The pages of the vDSO, which all processes share.
pub struct Vdso {
    clock: Arc<FixedPages>,
    image: Arc<FixedPages>,
}

/// Pages whose number never changes.
struct FixedPages {
    name: &'static [u8],
    frames: Vec<Frame>,
}

impl Vdso {
    /// Creates the pages.
    pub fn new(clock: &ClockPage) -> Self {
        let page = Frame::zeroed();
        page.write(0, &clock.bytes());
        let frames = IMAGE.chunks(FRAME_SIZE).map(|bytes| {
            let frame = Frame::zeroed();
            frame.write(0, bytes);
            frame
        });
        let image = FixedPages { name: b"[vdso]", frames: frames.collect() };
        Self {
            clock: Arc::new(FixedPages { name: b"[vvar]", frames: alloc::vec![page] }),
            image: Arc::new(image),
        }
    }

    /// Maps the pages. Returns the address of the image (`AT_SYSINFO_EHDR`).
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub async fn map(&self, memory: &ProcessMemory) -> Result<u64, Errno> {
        let (clock_len, image_len) = (self.clock.len(), self.image.len());
        // The whole range first, so that the pages lie side by side.
        let reserve = MapRequest {
            len: clock_len + image_len,
            protection: PROT_NONE,
            flags: MAP_PRIVATE | MAP_ANONYMOUS,
            ..MapRequest::default()
        };
        let start = memory.map(reserve).await?;
        let request = |address, pages: &Arc<FixedPages>, protection| MapRequest {
            address,
            len: pages.len(),
            protection,
            flags: MAP_PRIVATE | MAP_FIXED,
            object: Some(MapObject { source: pages.clone(), permitted: Protection::ALL, path: None }),
            ..MapRequest::default()
        };
        memory.map(request(start, &self.clock, PROT_READ)).await?;
        memory.map(request(start + clock_len, &self.image, PROT_READ | PROT_EXEC)).await
    }
}

impl FixedPages {
    fn len(&self) -> u64 {
        self.frames.len() as u64 * PAGE_SIZE
    }
}

impl PageSource for FixedPages {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.frames.get(usize::try_from(index).ok()?).cloned()
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        Box::pin(ready(self.frame(index).ok_or(Errno::EFAULT)))
    }

    fn mark_dirty(&self, _: u64) {}

    fn sync(&self, _: u64, _: u64) -> BoxFuture<'_, Result<(), Errno>> {
        Box::pin(ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        self.name.to_vec()
    }

    /// As in Linux, the lines of `/proc/PID/maps` have no device. No shared mapping of the pages exists, for which the identity
    /// would matter.
    fn identity(&self) -> (u64, u64) {
        (0, 0)
    }
}
