//! Panics: they end the program unless they happen inside a boundary.
//!
//! A boundary ([`isolate`], [`isolate_sync`]) surrounds the work for one request, connection, pod, key or object. A panic inside fails that work only,
//! also one in a destructor of what the work leaves behind. Each connection has one in every program, that of a client too.
//! Any other panic may leave shared state inconsistent: it is logged and the program aborts, so that its supervisor starts it again from what is stored.
//! [`install`] sets this up; without it (in unit tests) a panic has Rust's default behaviour.
//!
//! | program | boundaries | everything else |
//! |---|---|---|
//! | API server | a request (answered 500), a connection | abort: the store's writer above all |
//! | kubelet | a request, a connection, a pod's task, the projection of a watched object | abort: containers go on |
//! | kube-proxy | a request for names, the projection of a watched object, the compilation of a Service | abort: the kernel keeps the last ruleset |
//! | controller manager | a key of the work queue, the projection of a watched object | abort |
//! | scheduler | finding a node for a pod, the projection of a watched object | abort |

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

/// Bytes of a panic's message that are kept: messages may quote input.
const MESSAGE_MAX: usize = 512;

thread_local! {
    /// Boundaries that this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Work inside a boundary panicked. The hook has logged where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panic: {message}")]
pub struct Panicked {
    /// The panic's message, at most 512 bytes.
    pub message: String,
}

/// Logs panics, and ends the process with SIGABRT on those outside of all boundaries. Call it once, first in `main`.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let isolated = DEPTH.get() > 0;
        let message = message_of(info.payload());
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if isolated {
            tracing::error!(message, place, "panic inside an isolated task; the program continues");
            return;
        }
        // To standard error as well: the panic may come from the log, or precede it.
        eprintln!("panic at {place}: {message}");
        log_fatal(info, &message);
        std::process::abort();
    }));
}

fn log_fatal(info: &PanicHookInfo<'_>, message: &str) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    tracing::error!(message, place, thread, "panic outside of isolated tasks; the program aborts");
}

/// Runs `work`; a panic in it becomes an error. Changes that `work` made before remain.
///
/// # Errors
/// `work` panicked.
pub fn isolate_sync<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| Panicked { message: message_of(payload.as_ref()) })
}

/// Runs `work`; a panic in any of its polls becomes an error, and it is not polled again. It is dropped inside the boundary too: as soon as it has
/// ended, or when the returned future is dropped before. A panic in a destructor is logged, and changes nothing.
///
/// Tasks and blocking closures that `work` starts are outside of the boundary, unless [`spawn`] and [`spawn_blocking`] start them.
pub fn isolate<F: Future>(work: F) -> Isolated<F> {
    Isolated(Some(Box::pin(work)))
}

/// Work inside a boundary, until it has ended. It lies in memory of its own: an async function would hold it twice, as its argument and pinned.
#[must_use = "it does nothing unless it is awaited"]
pub struct Isolated<F>(Option<Pin<Box<F>>>);

impl<F: Future> Future for Isolated<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = self.0.as_mut() else {
            return Poll::Ready(Err(Panicked { message: "polled after its end".to_owned() }));
        };
        let ended = match isolate_sync(|| work.as_mut().poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panicked) => Err(panicked),
        };
        drop_isolated(self.0.take());
        Poll::Ready(ended)
    }
}

impl<F> Drop for Isolated<F> {
    fn drop(&mut self) {
        drop_isolated(self.0.take());
    }
}

/// Drops `work` inside a boundary; the hook logs a panic.
fn drop_isolated<T>(work: Option<T>) {
    if let Some(work) = work {
        drop(isolate_sync(|| drop(work)));
    }
}

/// Spawns a task inside a boundary: a panic in it is returned to the task that joins it.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(async move { isolate(work).await.unwrap_or_else(pass_on) })
}

/// Runs a blocking closure on tokio's blocking threads, inside a boundary: a panic in it is returned to the task that joins it.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::task::spawn_blocking(move || isolate_sync(work).unwrap_or_else(pass_on))
}

/// Continues unwinding without calling the hook again.
fn pass_on<T>(panicked: Panicked) -> T {
    std::panic::resume_unwind(Box::new(panicked.message))
}

/// Spawns the tasks that hyper makes for a connection (HTTP/2: one for each stream), each inside a boundary.
#[derive(Clone, Copy, Debug, Default)]
pub struct IsolatedExecutor;

impl<F> hyper::rt::Executor<F> for IsolatedExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(isolate(work));
    }
}

/// Counts a thread into a boundary until dropped.
struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get().saturating_add(1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = match payload.downcast_ref::<&str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("no message", String::as_str),
    };
    text[..text.floor_char_boundary(MESSAGE_MAX)].to_owned()
}

#[cfg(test)]
#[path = "panics/tests.rs"]
mod tests;
