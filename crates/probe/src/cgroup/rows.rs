//! The account as disjoint rows that add up to the charge.

use lowtide_model::cgroup::{CgroupKind, CgroupRow};

use super::account::Account;
use super::holdings::CgroupHoldings;

/// Number of pages that the kernel charges in advance for each processor (`MEMCG_CHARGE_BATCH`).
const BATCH_PAGES: u64 = 64;
/// Maximum number of groups with such a stock on a processor (`NR_MEMCG_STOCK`; older kernels have
/// one).
const MAX_STOCKS: u64 = 7;

/// Returns the maximum of the stocks of a number of groups, in bytes.
pub(super) fn stock_bound(groups: u64) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let page = rustix::param::page_size() as u64;
    BATCH_PAGES * page * processors * groups.clamp(1, MAX_STOCKS)
}

/// Divides the charge.
pub(super) fn rows(account: &Account, holdings: &CgroupHoldings, groups: u64) -> Vec<CgroupRow> {
    let mut parts = RowParts(Vec::new());
    parts.exact(CgroupKind::Anon, account.anon());
    shared(&mut parts, account, holdings);
    page_cache(&mut parts, account);
    kernel(&mut parts, account, holdings);
    parts.rest(account.charged_bytes, stock_bound(groups));
    parts.0
}

struct RowParts(Vec<CgroupRow>);

impl RowParts {
    fn add(&mut self, kind: CgroupKind, bytes: u64, estimated: bool) {
        if bytes > 0 {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.0.push(CgroupRow { kind, bytes, estimated, bound_bytes: None });
        }
    }

    fn exact(&mut self, kind: CgroupKind, bytes: u64) {
        self.add(kind, bytes, false);
    }

    /// Adds the stock and the rest, which make the sum the charge.
    fn rest(&mut self, charged: u64, bound: u64) {
        let sum = self.0.iter().fold(0_i64, |sum, row| sum.saturating_add(row.bytes));
        let left = i64::try_from(charged).unwrap_or(i64::MAX).saturating_sub(sum);
        let stock = left.clamp(0, i64::try_from(bound).unwrap_or(i64::MAX));
        let row =
            |kind, bytes, estimated, bound_bytes| CgroupRow { kind, bytes, estimated, bound_bytes };
        self.0.push(row(CgroupKind::Stock, stock, true, Some(bound)));
        self.0.push(row(CgroupKind::Rest, left - stock, false, None));
    }
}

/// Shared memory: the kernel counts how much is mapped together with files, so that this is an
/// estimate from the pages that processes map.
fn shared(parts: &mut RowParts, account: &Account, holdings: &CgroupHoldings) {
    let shmem = account.shmem();
    let most = account.mapped().min(shmem);
    // If mappings could not be read, all that can be mapped counts as mapped, so that unmapped
    // memory is not overstated.
    let is_known = holdings.files.has_all_mappings();
    let mapped = if is_known { holdings.files.mapped_bytes().min(most) } else { most };
    // If no page is mapped, or nothing but shared memory, the kernel's count is exact.
    let is_exact = account.mapped() == mapped || shmem == 0;
    parts.add(CgroupKind::ShmemMapped, mapped, !is_exact);
    parts.add(CgroupKind::ShmemUnmapped, shmem - mapped, !is_exact);
}

/// Page cache. Its lists can hold anonymous pages that may be dropped (`MADV_FREE`), and lack pages
/// that are locked or were just added.
fn page_cache(parts: &mut RowParts, account: &Account) {
    let cache = account.cache();
    let on_lists = cache - account.locked_cache_bytes();
    let active = account.value("active_file").min(on_lists);
    let inactive = account.value("inactive_file").min(on_lists - active);
    parts.exact(CgroupKind::FileActive, active);
    parts.exact(CgroupKind::FileInactive, inactive);
    parts.exact(CgroupKind::FileOther, cache - active - inactive);
}

fn kernel(parts: &mut RowParts, account: &Account, holdings: &CgroupHoldings) {
    let mut left = account.kernel().unwrap_or(u64::MAX);
    let mut take = |kind, bytes: u64, estimated| {
        let bytes = bytes.min(left);
        left -= bytes;
        parts.add(kind, bytes, estimated);
    };
    // Version 1 has a sum only.
    let is_divided = account.version == 2;
    for (kind, keys) in [
        (CgroupKind::SlabReclaimable, &["slab_reclaimable"][..]),
        (CgroupKind::SlabUnreclaimable, &["slab_unreclaimable"]),
        (CgroupKind::Percpu, &["percpu"]),
        (CgroupKind::Vmalloc, &["vmalloc"]),
        (CgroupKind::Zswap, &["zswap"]),
    ] {
        let bytes = keys.iter().map(|key| account.value(key)).sum();
        take(kind, if is_divided { bytes } else { 0 }, false);
    }
    let known = |key| account.known(key).filter(|_| is_divided);
    let page_tables = known("pagetables").map(|bytes| bytes + account.value("sec_pagetables"));
    let has_account = account.version == 2 || account.kernel().is_some();
    for (kind, exact, estimate) in [
        (CgroupKind::PageTables, page_tables, holdings.page_tables_bytes()),
        (CgroupKind::KernelStacks, known("kernel_stack"), holdings.stacks_bytes()),
    ] {
        let estimate = if has_account { estimate } else { 0 };
        take(kind, exact.unwrap_or(estimate), exact.is_none());
    }
    match account.kernel() {
        Some(_) => {
            let estimated = !is_divided;
            parts.add(CgroupKind::KernelOther, left, estimated);
        }
        None if is_divided => parts.add(CgroupKind::KernelOther, holdings.pipes_bytes(), true),
        None => {}
    }
    if is_divided {
        parts.exact(CgroupKind::Sockets, account.value("sock"));
        parts.exact(CgroupKind::Hugetlb, account.value("hugetlb"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1, Linux 6.18: a file of 64 MiB in tmpfs, written and closed.
    const V1: &str = "cache 0\nrss 0\nshmem 0\nmapped_file 0\ntotal_cache 67112960\ntotal_rss 114688\n\
        total_shmem 67108864\ntotal_mapped_file 0\ntotal_dirty 0\ntotal_writeback 0\n\
        total_inactive_anon 67223552\ntotal_active_anon 0\ntotal_inactive_file 0\n\
        total_active_file 4096\ntotal_unevictable 0\n";
    /// Linux 6.12: page tables of a sparse mapping, and a log.
    const V6_12: &str = "anon 134307840\nfile 50335744\nkernel 135233536\nkernel_stack 16384\n\
        pagetables 134516736\nsec_pagetables 0\npercpu 0\nsock 4096\nvmalloc 0\nshmem 0\nzswap 0\n\
        file_mapped 0\nfile_dirty 50331648\nfile_writeback 0\nswapcached 0\nactive_file 4096\n\
        inactive_file 50331648\nslab_reclaimable 419430\nslab_unreclaimable 102400\nslab 521830\n";
    /// Linux 5.10, where `memory.stat` lacks pipes and page tables.
    const V5_10: &str = "anon 118784\nfile 0\nkernel_stack 16384\npercpu 0\nsock 0\nshmem 0\n\
        file_mapped 0\nactive_file 0\ninactive_file 0\nslab_reclaimable 40960\n\
        slab_unreclaimable 81920\nslab 122880\n";

    fn divided(version: u32, stat: &str, kmem: Option<u64>, charged: u64) -> Vec<CgroupRow> {
        let account = Account::parse(version, charged, stat, kmem);
        let rows = rows(&account, &CgroupHoldings::default(), 1);
        let sum: i64 = rows.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, charged as i64, "{rows:#?}");
        rows
    }

    fn bytes(rows: &[CgroupRow], kind: CgroupKind) -> i64 {
        rows.iter().filter(|row| row.kind == kind).map(|row| row.bytes).sum()
    }

    #[test]
    fn unmapped_shared_memory_of_version_1_is_a_row() {
        let sum = 67_112_960 + 114_688 + 184_320;
        let rows = divided(1, V1, Some(184_320), sum + 8192);
        assert_eq!(bytes(&rows, CgroupKind::ShmemUnmapped), 67_108_864);
        assert_eq!(bytes(&rows, CgroupKind::KernelOther), 184_320);
        assert_eq!((bytes(&rows, CgroupKind::Stock), bytes(&rows, CgroupKind::Rest)), (8192, 0));
    }

    #[test]
    fn kernel_memory_of_version_2_is_divided() {
        let sum = 134_307_840 + 50_335_744 + 135_233_536 + 4096;
        let rows = divided(2, V6_12, None, sum);
        assert_eq!(bytes(&rows, CgroupKind::PageTables), 134_516_736);
        assert_eq!(bytes(&rows, CgroupKind::SlabReclaimable), 419_430);
        assert_eq!(bytes(&rows, CgroupKind::Sockets), 4096);
        let other = 135_233_536 - 134_516_736 - 16_384 - 521_830;
        assert_eq!(bytes(&rows, CgroupKind::KernelOther), other);
    }

    #[test]
    fn what_an_old_kernel_does_not_report_is_the_rest() {
        let rows = divided(2, V5_10, None, 34 << 20);
        assert!(bytes(&rows, CgroupKind::Rest) > 32 << 20, "{rows:#?}");
    }

    #[test]
    fn counts_that_lag_make_the_rest_negative() {
        let account = Account::parse(2, 100_000, "anon 126976\nkernel 0\n", None);
        assert!(account.lags());
        let rows = divided(2, "anon 126976\nkernel 0\n", None, 100_000);
        assert_eq!(bytes(&rows, CgroupKind::Rest), 100_000 - 126_976);
    }

    #[test]
    fn the_working_set_is_that_of_kubernetes() {
        let account = Account::parse(2, 200 << 20, V6_12, None);
        assert_eq!(account.working_set_bytes(), (200 << 20) - 50_331_648);
        assert_eq!(account.reclaimable_bytes(), 4096 + 50_331_648 + 419_430);
    }

    #[test]
    fn locked_page_cache_is_on_no_list_and_is_not_reclaimed() {
        // 40 MiB of a file, locked; 8 MiB of anonymous memory, of which 2 MiB are locked, too.
        let stat = "anon 8388608\nfile 46137344\nshmem 0\nactive_anon 6291456\ninactive_anon 0\n\
            active_file 1048576\ninactive_file 3145728\nunevictable 44040192\nkernel 0\n";
        let account = Account::parse(2, 54_525_952, stat, None);
        assert_eq!(account.locked_cache_bytes(), 40 << 20);
        assert_eq!(account.reclaimable_bytes(), 4 << 20);
        let rows = divided(2, stat, None, 54_525_952);
        assert_eq!(bytes(&rows, CgroupKind::FileOther), 40 << 20);
        // Locked anonymous memory alone.
        let stat = "anon 8388608\nfile 4194304\nshmem 0\ninactive_anon 0\ninactive_file 4194304\n\
            unevictable 8388608\nkernel 0\n";
        let account = Account::parse(2, 12_582_912, stat, None);
        assert_eq!((account.locked_cache_bytes(), account.reclaimable_bytes()), (0, 4 << 20));
    }

    #[test]
    fn anonymous_memory_that_was_given_back_lazily_can_be_reclaimed() {
        // 64 MiB of anonymous memory, of which 48 MiB are on the lists of files (MADV_FREE).
        let stat = "total_rss 67108864\ntotal_cache 0\ntotal_shmem 0\ntotal_inactive_anon 16777216\n\
            total_inactive_file 50331648\ntotal_active_file 0\ntotal_unevictable 0\n";
        let account = Account::parse(1, 67_108_864, stat, Some(0));
        assert_eq!((account.reclaimable_bytes(), account.locked_cache_bytes()), (48 << 20, 0));
        assert_eq!(account.working_set_bytes(), 16 << 20);
    }

    proptest::proptest! {
        #[test]
        fn rows_add_up_for_any_account(
            version in 1_u32..3,
            charged in 0_u64..1 << 50,
            values in proptest::collection::vec(0_u64..1 << 58, 8),
        ) {
            let keys = ["anon", "file", "shmem", "kernel", "sock", "pagetables", "slab", "total_rss"];
            let pairs = keys.iter().zip(&values).map(|(key, value)| format!("{key} {value}\n"));
            let account = Account::parse(version, charged, &pairs.collect::<String>(), Some(values[3]));
            let rows = rows(&account, &CgroupHoldings::default(), 3);
            let sum: i128 = rows.iter().map(|row| i128::from(row.bytes)).sum();
            proptest::prop_assert_eq!(sum, i128::from(charged));
        }
    }
}
