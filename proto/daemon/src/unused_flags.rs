//! Flags of Kubernetes' programs that are accepted, so that units and manifests keep working, and have no effect.

/// Declares a struct of hidden flags without effect: those listed and the ones of klog that change how a log is written. Each may be given several
/// times, with a value or without; `list_warnings` returns a line for each that is. The caller's crate depends on `clap`.
#[macro_export]
macro_rules! define_unused_flags {
    ($(#[$doc:meta])* $name:ident { $($flag:ident)* }) => {
        $crate::define_unused_flags! {
            @all $(#[$doc])* $name {
                $($flag)*
                add_dir_header alsologtostderr log_backtrace_at log_dir log_file log_file_max_size
                log_flush_frequency log_json_info_buffer_size log_json_split_stream logtostderr
                one_output skip_headers skip_log_headers stderrthreshold vmodule
            }
        }
    };
    (@all $(#[$doc:meta])* $name:ident { $($flag:ident)* }) => {
        $(#[$doc])*
        #[derive(::clap::Args, Clone, Debug, Default)]
        pub struct $name {
            $(
                // A flag that follows is none of its values.
                #[arg(long, hide = true, value_name = "UNUSED", num_args = 0..=1, default_missing_value = "")]
                $flag: Vec<String>,
            )*
        }

        impl $name {
            /// A warning for each flag that is set.
            pub fn list_warnings(&self) -> Vec<String> {
                let all = [$((stringify!($flag), self.$flag.is_empty())),*];
                let set = all.iter().filter(|(_, is_unset)| !is_unset);
                set.map(|(name, _)| $crate::flags::without_effect(&name.replace('_', "-"))).collect()
            }
        }
    };
}
