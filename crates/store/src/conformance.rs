//! The behaviour of every store, written against the traits: a new one makes its tests by
//! [`tests!`].
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub(crate) mod api_tokens;
pub(crate) mod invitations;
pub(crate) mod known_devices;
pub(crate) mod leases;
pub(crate) mod provider_sessions;
pub(crate) mod refresh_tokens;
pub(crate) mod revocations;
pub(crate) mod sessions;
pub(crate) mod users;
pub(crate) mod wireguard;

use vpnd_config::factor::Factors;
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::session::{DeviceId, SessionId};

use crate::{
    ExternalUser, Lease, LeaseOwner, NewUser, PasswordHash, SessionRecord, Store, TotpSecret, UserId,
};

/// One store that may be opened again, as by a gateway that starts, or twice, as by two processes.
pub(crate) trait Stand {
    fn open(&self) -> Box<dyn Store>;
}

/// Makes a test of each behaviour, each with a new [`Stand`] from this expression.
macro_rules! tests {
    ($stand:expr) => {
        $crate::conformance::tests! { $stand;
            users: a_user_comes_back_whole_after_reopening, names_are_taken_once_and_unknown_names_are_errors, a_user_is_found_however_the_letters_are_written, a_step_of_codes_is_used_once_and_in_order, known_sources_are_few_and_recent, two_gateways_may_work_on_one_store, a_user_of_another_source_is_one_record_however_often_they_come, a_user_of_another_source_can_be_disabled_before_the_first_login, a_user_whom_the_source_knows_by_name_has_one_spelling, an_answer_about_a_user_who_was_removed_meanwhile_makes_no_record, a_name_belongs_to_one_subject_and_a_new_name_ends_the_sessions_of_the_old, who_may_not_log_in_keeps_the_name, a_source_can_not_store_just_anything, a_list_has_pages_that_have_everybody_once;
            sessions: a_disabled_user_has_no_session_even_with_the_right_generation, sessions_keep_their_tokens_until_they_expire_or_end, changes_of_many_sessions_are_made_in_their_order, a_removed_device_loses_its_session_and_addresses_and_the_others_keep_theirs, owners_of_sessions_are_counted_with_their_groups, sessions_that_the_store_lacks_are_missing;
            leases: an_address_has_one_owner_at_a_time, an_address_that_a_device_gives_up_for_another_is_nobodys_until_its_session_has_ended, a_fixed_address_is_its_users_alone, leases_are_counted_and_forgotten;
            revocations: taking_rights_away_is_an_event_and_voids_sessions, a_revoked_certificate_ends_what_was_granted_and_is_found_again, the_end_of_a_users_time_is_a_revocation_once, a_change_of_groups_keeps_sessions_and_voids_logins_under_way, sessions_end_with_their_cause_and_the_user_may_log_in_again, revocations_that_were_carried_out_are_forgotten_once_there_are_many;
            api_tokens: a_token_of_the_api_comes_back_whole_and_goes;
            known_devices: a_device_is_known_from_its_first_to_its_last_day, devices_that_are_seen_together_are_each_kept;
            refresh_tokens: a_refresh_token_is_the_latest_of_its_user_and_goes_with_the_user;
            provider_sessions: a_session_at_a_provider_leads_to_its_user_while_it_is_among_the_latest;
            invitations: an_invitation_is_good_once_until_its_time, an_invitation_goes_with_the_rights_of_its_user, a_user_of_another_source_chooses_codes_by_an_invitation_and_no_password;
            wireguard: a_wireguard_device_is_one_users_and_comes_back_whole, a_user_has_as_many_wireguard_devices_as_the_next_one_allows, timestamps_of_handshakes_only_become_later, a_walled_device_is_so_until_it_is_renewed, a_removed_wireguard_device_is_gone_with_its_addresses_and_sessions, each_change_of_who_may_have_which_device_shows, devices_come_with_what_their_users_profiles_depend_on;
        }
    };
    ($stand:expr; $($part:ident: $($name:ident),+;)+) => {
        $($(
            #[test]
            fn $name() {
                $crate::conformance::$part::$name(&$stand);
            }
        )+)+
    };
}
pub(crate) use tests;

pub(crate) fn ann() -> NewUser {
    NewUser {
        totp: Some(TotpSecret::new(vec![77; 20])),
        groups: vec!["staff".to_owned(), "admins".to_owned()],
        certificate: Some([9; 32]),
        ..NewUser::new("ann", PasswordHash::new("$argon2id$secret-hash".to_owned()))
    }
}

pub(crate) fn named(name: &str) -> NewUser {
    NewUser { name: name.to_owned(), certificate: None, totp: None, ..ann() }
}

pub(crate) fn external(subject: &str, name: &str, groups: &[&str]) -> ExternalUser {
    ExternalUser {
        source: "campus".to_owned(),
        subject: subject.to_owned(),
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
    }
}

pub(crate) fn session_of(user: UserId, id: u8) -> SessionRecord {
    SessionRecord {
        id: SessionId([id; 16]),
        user,
        device: DeviceId([id; 16]),
        epoch: 1,
        tokens: Tokens::restore(TokenHash::from_bytes([1; 32]), Some(TokenHash::from_bytes([2; 32]))),
        started_s: 1000,
        expires_s: 2000,
        factors: Factors::PASSWORD.and(Factors::ONE_TIME_CODE),
        auth_time_s: 900,
        generation: 0,
        most: None,
    }
}

fn lease(address: &str, user: u8, session: u8, until_s: u64) -> Lease {
    Lease {
        address: address.parse().unwrap(),
        owner: LeaseOwner { user: UserId([user; 16]), device: DeviceId([user; 16]) },
        session: SessionId([session; 16]),
        until_s,
    }
}
