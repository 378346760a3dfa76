//! Counts what a thread allocates, so that tests that run beside each other do not see each other.
#![allow(unsafe_code)] // The only way to see allocations is to be the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes to the system allocator unchanged; counting touches only thread-local cells without
// destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as i64;
        HELD.set(HELD.get() + size);
        ALLOCATED.set(ALLOCATED.get() + size);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` gives, how many bytes are held because of it, and how many it allocated on the way.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, i64, i64) {
    let (held, allocated) = (HELD.get(), ALLOCATED.get());
    let value = work();
    (value, HELD.get() - held, ALLOCATED.get() - allocated)
}
