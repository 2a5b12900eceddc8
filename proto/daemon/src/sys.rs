//! What is kept resident: the C library's allocator settings and advice on mapped code, which have no safe wrapper.
#![allow(unsafe_code, reason = "mallopt, malloc_trim and madvise are plain C functions")]

use std::ops::Range;

use nix::libc;

/// Keeps the allocator to `arenas` arenas (each further one costs a few MB of resident memory after
/// a burst) and lets it give back large pieces at once, and the end of the heap when a megabyte of it
/// is free: with less it goes back and forth with each pod of a burst. What is kept by that is given
/// back later, see [`crate::runtime::run`]. Takes effect for allocations after the call. Does nothing
/// where the C library is not glibc.
pub(crate) fn limit_malloc_arenas(arenas: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers, reads no memory of ours and may be called at any time; an
    // unknown value is ignored by it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1024 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = arenas;
}

/// Gives free heap pages back to the kernel, after a burst such as an initial list.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes an integer, is thread safe and touches only the allocator's own
    // free lists.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps what the kernel has mapped of a range; what is touched again comes back from its file. The range has to be one that
/// [`crate::resident::droppable`] found in this process.
pub(crate) fn unmap_clean(range: &Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut::<libc::c_void>(range.start);
    // SAFETY: the range is a private mapping of a file that is not writable and of which no page was ever written: MADV_DONTNEED drops
    // page table entries only, and every later read or jump finds the same bytes again. A failure changes nothing.
    unsafe {
        libc::madvise(start, range.len(), libc::MADV_DONTNEED);
    }
}
