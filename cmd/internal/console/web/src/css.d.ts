// Style sheets are gathered into one by the build.
declare module "*.css";
