//! What a cgroup is charged for, by the kernel's account alone. It is read without the processes,
//! so that all cgroups of a host can be read often.

use lowtide_model::cgroup::CgroupCharge;

use super::CgroupError;
use super::account::Account;
use super::directory::CgroupDirectory;
use super::holdings::CgroupHoldings;
use super::rows::rows;

/// Reads the charge of a cgroup, without its processes. Shared memory counts as mapped as far as it
/// can be, so `shmem_unmapped` is a lower bound.
///
/// # Errors
/// Fails if the account cannot be read, or the cgroup was removed.
pub fn read_charge(group: &CgroupDirectory) -> Result<CgroupCharge, CgroupError> {
    let account = Account::read(group)?;
    let limits = group.limits();
    Ok(CgroupCharge {
        charged_bytes: account.charged_bytes,
        limit_bytes: limits.iter().filter_map(|limit| limit.limit_bytes).min(),
        working_set_bytes: account.working_set_bytes(),
        reclaimable_bytes: account.reclaimable_bytes(),
        rows: rows(&account, &CgroupHoldings::default(), 1),
    })
}
