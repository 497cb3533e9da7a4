//! Networks of service cells: a cell that owns a network device serves it to other cells as virtio network devices over
//! links, through an Ethernet switch.
//!
//! ```text
//!   client cell                          service cell
//!   stack                                stack ──────────┐
//!   reconnecting queue                   switch ── queue ─── device ── network
//!   virtio driver  <-- shared memory --> a task for each client, for the activity of the client's name
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | the network manager of a service cell, which puts the switch in front of the device; its clients |
//! | [`client`] | the network device of a client, which connects again when the service cell was restarted |
//! | `hub` | the switch with its queues |
//! | `translation` | network address translation between the clients and the device, if it is wanted |
//!
//! **Copies.** Client and server each copy a frame between the shared memory and their own, so that neither changes it under
//! the other. A frame between two clients is copied twice by the server.
//!
//! **Accounting.** The task of a client copies both its frames and those for it, for the activity with the client's name. Its
//! frames to the device are traffic of that activity at the resource `network-write`, with its limits and shares.
//!
//! **Address translation.** With [`server::NatOptions`] the clients have a network of their own (`isola-nat`): the switch
//! connects them with each other only, and the gateway between it and the device translates their packets.
//!
//! **Two queues.** The driver of one link's device is the platform's (`open_network_device`): it copies frames to memory that the
//! device reaches, and ends with the link. The reconnecting queue of [`client`] opens links, which the platform does not know as
//! channels, and passes frames to the driver of the present one, so that the stack keeps its device.
//!
//! **Failure.** Frames in flight are lost when the service cell ends, as on any network; the client opens another link and has
//! the same hardware address there.

pub mod client;
mod hub;
pub mod server;
mod translation;
