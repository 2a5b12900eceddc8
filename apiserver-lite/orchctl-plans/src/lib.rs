//! Pure: what the commands of the client write. Objects and arguments become objects, patches, lists of pods and texts; requests are sent elsewhere.
//!
//! - [`apply`]: the patch of a client-side apply, with the annotation that records what was applied.
//! - [`edits`]: labels, annotations and taints as sets that arguments change. [`change_cause`]: the command itself as an annotation.
//! - [`pod_template`]: images, environment, resources and accounts of the pods of a workload.
//! - [`rollout`]: how far a workload is with its update, in words. [`drain`]: which pods leave a node, and which prevent it.
//! - [`text`]: objects side by side. [`generate`]: objects from flags. [`proxy_rules`]: which requests a proxy passes on.
//!   [`reconcile_access`]: roles and bindings merged with those of files. [`completion`]: what the word at the cursor of a shell names.
//!   [`image_name`]: what may be the name of an image.

pub mod apply;
mod argument_error;
pub mod change_cause;
pub mod completion;
pub mod drain;
pub mod edits;
pub mod generate;
pub mod image_name;
mod keep;
pub mod pod_template;
pub mod proxy_rules;
pub mod reconcile_access;
pub mod rollout;
pub mod text;

pub use argument_error::ArgumentError;
