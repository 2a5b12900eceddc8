//! What the recorder of requests and the comparison share.

pub mod recording;
