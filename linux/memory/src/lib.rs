//! The memory of Linux processes: mappings, page faults, copies from and to programs.
//!
//! - [`ProcessMemory`]: the memory of a process, which its threads share: the calls on it (`mmap` and its relatives), page
//!   faults, `fork`.
//! - [`Mapping`]: addresses with the same attributes, Linux's VMA.
//! - [`PageSource`]: the contents of a mapping, such as a file's page cache. A page fault takes a frame from it.
//!   [`SharedMemory`] is one without a file.
//! - [`UserBuffer`]: bytes of a program, resolved to frames, from which calls read and to which they write.
//! - [`MemoryCharge`]: the account of frames, with a limit.
//!
//! The page tables know which pages are mapped, and with which rights; no second description of them exists. A frame is a
//! process's own if it has owners ([`isola_memory::frame::Frame::owners`]); a process writes to its own frames only while
//! it is the only owner. Other frames belong to an object, or are the frame of zeros.
//!
//! A change that removes pages or rights is over when all TLBs are flushed. Until then the frames stay in memory.
//!
//! Lock order: the lock of a process's memory, then the locks of a [`PageSource`]. The locks of two processes are never
//! held together.
//!
//! Not here: files, and who pays for frames.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod advice;
mod charge;
mod dump;
mod fault;
mod fetch;
mod flush;
mod fork;
mod futex;
mod layout;
mod map;
mod mapper;
mod mappers;
mod mapping;
mod mappings;
mod page_source;
mod pages;
mod process_memory;
mod protect;
mod protection;
mod remap;
mod report;
mod residency;
mod shared_memory;
mod user_buffer;

pub use access::{MAX_BUFFERS, MAX_PATH, MAX_TRANSFER};
pub use charge::{FrameBudget, MemoryCharge};
pub use fault::FaultError;
pub use futex::{FutexKey, FutexWord};
pub use isola_linux_abi::Errno;
pub use layout::{MIN_ADDRESS, MemoryLayout, MemoryLimits, STACK_GUARD_GAP};
pub use map::{MapObject, MapRequest};
pub use mappers::Mappers;
pub use mapping::{Attributes, Mapping, MappingObject};
pub use mappings::MAX_MAPPINGS;
pub use page_source::{BoxFuture, Mapper, PageSource};
pub use pages::{ResidentPages, zero_frame};
pub use process_memory::ProcessMemory;
pub use protection::Protection;
pub use remap::RemapRequest;
pub use report::{MappingUsage, MemoryUsage};
pub use shared_memory::{MAX_SIZE, SharedMemory};
pub use user_buffer::{FramePart, UserBuffer};
