# Sourced by the scripts in tools/: `usage_if_asked SCRIPT ARGUMENTS...` prints what SCRIPT says about itself and ends it
# if the first argument is -h or --help.
usage_if_asked() {
    case ${2:-} in
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1" && exit 0 ;;
    esac
}
