#![doc = include_str!("../README.md")]

#[cfg(not(target_os = "linux"))]
compile_error!("lowtide-tokio runs on Linux only");

mod allocator;
mod clamp;
mod keeper;
mod memory;
#[cfg(feature = "serve")]
mod serve;
mod sweep;
mod tracked;

pub use allocator::{Allocator, Method, Released, release};
pub use keeper::{
    CountLayer, CountService, CountServiceFuture, Counted, CountedBody, CountedFuture, Ended,
    Figures, Keeper, KeeperBuilder, Lingering, Recycle, Report, RequestGuard, Watch,
};
#[cfg(feature = "serve")]
pub use serve::{Limits, Overload, PeerAddr, Serve, serve};
pub use sweep::{Swept, sweep};
pub use tracked::{Tracked, allocated_bytes};
