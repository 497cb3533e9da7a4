//! The control queue: commands to a network device (virtio 1.2, 5.1.6.5).

use crate::device::{DeviceError, PATIENCE};
use crate::virtqueue::{Access, Fault, Part, VirtQueue};
use isola_machine::dma::DmaRegion;

/// The class of commands about what is received, and the commands that say whether that is everything, and whether it is
/// all that is for a group.
const CLASS_RECEIVE: u8 = 0;
const COMMAND_PROMISCUOUS: u8 = 0;
const COMMAND_ALL_GROUPS: u8 = 1;

/// The class of commands about several queues, the command that says how many are used, and the one that says how frames are
/// spread over them.
const CLASS_QUEUES: u8 = 4;
const COMMAND_SET_PAIRS: u8 = 0;
const COMMAND_SPREAD: u8 = 1;

/// Where in the region of commands the device's answer goes: behind the longest command.
const ANSWER: usize = 2 + super::spreading::COMMAND_LEN;
const ANSWER_OK: u8 = 0;
const ANSWER_NONE: u8 = 0xff;

/// The control queue of a device that runs.
#[derive(Debug)]
pub(super) struct ControlQueue {
    queue: VirtQueue<DmaRegion>,
    commands: Option<DmaRegion>,
}

impl ControlQueue {
    pub(super) fn new(mut queue: VirtQueue<DmaRegion>, memory: &mut dyn FnMut(usize) -> DmaRegion) -> Self {
        queue.disarm();
        Self { queue, commands: Some(memory(ANSWER + 1)) }
    }

    /// Has the device spread what it receives over the first `pairs` pairs.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn set_pairs(&mut self, pairs: u16) -> Result<(), DeviceError> {
        let [low, high] = pairs.to_le_bytes();
        self.execute(CLASS_QUEUES, COMMAND_SET_PAIRS, &[low, high])
    }

    /// Has the device spread what it receives by this table.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn spread(&mut self, table: &[u8]) -> Result<(), DeviceError> {
        self.execute(CLASS_QUEUES, COMMAND_SPREAD, table)
    }

    /// Has the device keep frames that are for other addresses to itself: until it is told to, it hands over all that
    /// its network carries, and everybody on it works for everybody's traffic. Those for groups it goes on handing over:
    /// routers and neighbours of IPv6 speak to groups.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn filter(&mut self) -> Result<(), DeviceError> {
        self.execute(CLASS_RECEIVE, COMMAND_ALL_GROUPS, &[1])?;
        self.execute(CLASS_RECEIVE, COMMAND_PROMISCUOUS, &[0])
    }

    /// Executes a command with data of at most [`super::spreading::COMMAND_LEN`] bytes. Waits for the answer, looking for it again and again: commands
    /// are rare, and devices answer at once.
    fn execute(&mut self, class: u8, command: u8, data: &[u8]) -> Result<(), DeviceError> {
        let mut commands = self.commands.take().ok_or(Fault::Silent)?;
        commands.write_u8(0, class);
        commands.write_u8(1, command);
        (2..).zip(data).for_each(|(offset, byte)| commands.write_u8(offset, *byte));
        commands.write_u8(ANSWER, ANSWER_NONE);
        let parts = [
            Part { offset: 0, len: 2, access: Access::DeviceReads },
            Part { offset: 2, len: data.len() as u32, access: Access::DeviceReads },
            Part { offset: ANSWER, len: 1, access: Access::DeviceWrites },
        ];
        if let Err(refused) = self.queue.lend_parts(commands, &parts) {
            self.commands = Some(refused.buffer);
            return Err(self.queue.fault().map_or(DeviceError::CommandRefused, DeviceError::Fault));
        }
        self.queue.publish();
        for _ in 0..PATIENCE {
            if let Some(returned) = self.queue.take_returned()? {
                let answer = returned.buffer.read_u8(ANSWER);
                self.commands = Some(returned.buffer);
                return if answer == ANSWER_OK { Ok(()) } else { Err(DeviceError::CommandRefused) };
            }
            core::hint::spin_loop();
        }
        Err(self.queue.break_off(Fault::Silent).into())
    }
}
