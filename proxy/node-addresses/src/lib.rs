//! io: addresses of this node: those that it has ([`local`]), and those that it announces for load balancers. What is announced is decided by
//! [`announcement`]; [`address_table`] changes the kernel's addresses, [`announcer`] keeps both equal, and [`frames`] are what neighbours receive.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod address_table;
pub mod announcement;
pub mod announcer;
pub mod frames;
pub mod local_addresses;

mod sys;
