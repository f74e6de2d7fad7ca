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

pub use allocator::{Allocator, Method, ReleaseReport, release};
pub use keeper::{
    CountLayer, CountService, CountServiceFuture, Keeper, KeeperBuilder, KeeperEnded, KeeperReport,
    LingeringIo, Metrics, Recycle, RequestGuard, Watch, WatchedBody, WatchedFuture, WatchedService,
};
#[cfg(feature = "serve")]
pub use serve::{Limits, Overload, PeerAddr, Serve, serve};
pub use sweep::{SweepReport, sweep};
pub use tracked::{Tracked, allocated_bytes};
